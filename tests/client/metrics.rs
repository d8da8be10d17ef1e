//! What a program's recorder receives about its locks; and that documents, dashboard and alerts
//! name only metrics that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::{Arc, Mutex};

use lockmod::client::{Locker, LockerBuilder, Lost};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

use crate::watch::Exporter;
use crate::{builder, connected, millis, nodes, until};

/// A locker whose metrics go to a recorder of its own.
fn recorded(builder: LockerBuilder) -> (Locker, Heard) {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let locker = metrics::with_local_recorder(&recorder, || builder.build()).unwrap();
    (locker, Heard { snapshotter, counts: Mutex::default() })
}

/// What the recorder has received. A snapshot takes values away, so they are added up.
struct Heard {
    snapshotter: Snapshotter,
    counts: Mutex<BTreeMap<String, (u64, f64)>>,
}

impl Heard {
    /// A series by its name and the values of its labels: its count, and the sum of a histogram.
    fn series(&self, wanted: &str) -> Option<(u64, f64)> {
        let mut counts = self.counts.lock().unwrap();
        for (key, _, _, value) in self.snapshotter.snapshot().into_vec() {
            let key = key.key();
            let labels: String = key.labels().map(|label| format!(" {}", label.value())).collect();
            let series = counts.entry(format!("{}{labels}", key.name())).or_default();
            match value {
                DebugValue::Counter(count) => series.0 += count,
                DebugValue::Histogram(values) => {
                    series.0 += values.len() as u64;
                    series.1 += values.iter().map(|value| value.into_inner()).sum::<f64>();
                }
                DebugValue::Gauge(_) => panic!("there are no gauges"),
            }
        }
        counts.get(wanted).copied()
    }

    #[track_caller]
    fn count(&self, wanted: &str) -> u64 {
        self.series(&format!("distributed_lock_{wanted}"))
            .unwrap_or_else(|| {
                panic!("no series {wanted} among {:?}", self.counts.lock().unwrap().keys())
            })
            .0
    }

    fn names(&self) -> BTreeSet<String> {
        let _ = self.series("");
        let counts = self.counts.lock().unwrap();
        counts.keys().map(|series| series.split(' ').next().unwrap().to_owned()).collect()
    }
}

#[tokio::test]
async fn a_recorder_hears_of_acquisitions_failures_and_votes() {
    let mut nodes = nodes(3);
    let (locker, heard) = recorded(builder(&nodes));
    connected(&locker).await;
    assert_eq!(heard.count("acquired_total"), 0, "series are there from the start");
    let guard = locker.acquire("orders").await.unwrap();
    assert_eq!((heard.count("acquired_total"), heard.count("wait_seconds")), (1, 1));
    locker.try_acquire("orders").await.unwrap_err();
    assert_eq!(heard.count("failures_total held"), 1);
    locker.try_acquire("orders").ttl(millis(1)).await.unwrap_err();
    assert_eq!(heard.count("failures_total bad_option"), 1);
    let votes = |vote: &str| -> u64 {
        let vote = |node: &crate::common::Server| {
            heard.count(&format!("votes_total 127.0.0.1:{} {vote}", node.port()))
        };
        nodes.iter().map(vote).sum()
    };
    assert!((2..=3).contains(&votes("granted")), "a quorum's, at least");
    assert!((2..=3).contains(&votes("held")));
    guard.release().await.unwrap();
    let (count, sum) = heard.series("distributed_lock_hold_seconds").unwrap();
    assert!(count == 1 && sum > 0.0);

    nodes[0].kill();
    nodes[1].kill();
    locker.try_acquire("orders").await.unwrap_err();
    assert_eq!(heard.count("failures_total no_quorum"), 1);
    let lost_votes = |node: &crate::common::Server| {
        let node = format!("votes_total 127.0.0.1:{}", node.port());
        heard.count(&format!("{node} unreachable")) + heard.count(&format!("{node} timed_out"))
    };
    assert!(nodes[..2].iter().map(lost_votes).sum::<u64>() >= 2);
}

#[tokio::test]
async fn a_recorder_hears_of_renewals_and_of_each_lost_lease_once() {
    let nodes = nodes(3);
    let (locker, heard) = recorded(builder(&nodes).ttl(millis(600)));
    connected(&locker).await;
    let guard = locker.acquire("orders").await.unwrap();
    until("it was renewed", || heard.count("renewals_total confirmed") > 0).await;
    nodes.iter().for_each(|node| drop(node.run("DEL orders").unwrap()));
    assert_eq!(guard.lost().await, Lost::Removed);
    until("the loss was counted", || heard.count("lost_total removed") == 1).await;
    drop(guard);
    let limited = locker.acquire("invoices").max_hold(millis(100)).await.unwrap();
    assert_eq!(limited.lost().await, Lost::MaxHold);
    until("the end was counted", || heard.count("lost_total max_hold") == 1).await;
    drop(limited);
    let released = locker.acquire("reports").await.unwrap();
    released.release().await.unwrap();
    // Two guards of one lease.
    let holder = locker.holder();
    let (leaked, again) =
        (holder.acquire("plans").await.unwrap(), holder.acquire("plans").await.unwrap());
    drop(leaked.leak());
    drop(again.leak());
    let losses = ["expired", "removed", "max_hold"];
    let lost: u64 = losses.iter().map(|reason| heard.count(&format!("lost_total {reason}"))).sum();
    assert_eq!((lost, heard.count("hold_seconds"), heard.count("acquired_total")), (2, 4, 5));
}

#[tokio::test]
async fn spans_name_the_lock_and_tell_no_token() {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let nodes = nodes(1);
    let locker = builder(&nodes).build().unwrap();
    // While there is only one subscriber, the first thread that reaches a place in the code decides
    // permanently whether events there are enabled: perhaps another test, which does not listen. So
    // there is a second subscriber, which records nothing.
    let deaf = tracing_subscriber::fmt().with_max_level(tracing::level_filters::LevelFilter::OFF);
    let _deaf = tracing::Dispatch::new(deaf.finish());
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let token = {
        let _here = tracing::subscriber::set_default(subscriber);
        let guard = locker.acquire("orders").await.unwrap();
        locker.try_acquire("orders").await.unwrap_err();
        guard.leak().token
    };
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("lockmod.acquire{lock=orders}: lockmod::client::acquire: acquired"));
    assert!(
        text.contains("fence=1") && text.contains("not acquired error=lock 'orders'"),
        "{text}"
    );
    assert!(!text.contains(&format!("{token:?}")), "{text}");
}

// ---- documents, dashboard, alerts ----

fn document(path: &str) -> String {
    std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// The names of metrics in a text, without the suffixes that Prometheus adds to histograms.
fn named(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let words = text.split(|c: char| !(is_name(c) || c.is_ascii_digit() || c == '.' || c == '-'));
    let names = words.filter(|word| {
        (word.starts_with("lockmod_") || word.starts_with("distributed_lock_"))
            && word.chars().all(is_name)
    });
    let base = |name: &str| name.strip_suffix("_bucket").unwrap_or(name).to_owned();
    names.map(base).collect()
}

/// The metrics of the exporter, and their kinds.
fn exported() -> BTreeMap<String, String> {
    let nodes = nodes(1);
    let text = Exporter::start(&nodes).metrics();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
}

#[tokio::test]
async fn documents_dashboard_and_alerts_name_the_metrics_that_exist() {
    let (_locker, heard) = recorded(builder(&nodes(1)));
    let kinds = exported();
    let real: BTreeSet<String> = kinds.keys().cloned().chain(heard.names()).collect();
    let text = document("docs/operations.md");
    let (_, section) = text.split_once("\n## Metrics\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows: String = section
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|row| row.split(" | ").next().unwrap().to_owned() + "\n")
        .collect();
    assert_eq!(named(&rows), real, "docs/operations.md, Metrics");
    for row in section.lines().filter(|line| line.starts_with("| `lockmod_")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        for name in named(cells[0]) {
            assert_eq!(cells[1], kinds[&name], "the kind of {name} in docs/operations.md");
        }
    }
    for file in ["alerts.yml", "alerts_test.yml", "dashboard.json"] {
        let names = named(&document(&format!("docs/operations/{file}")));
        assert!(names.len() > 5, "{file}: {names:?}");
        let unknown: Vec<_> = names.difference(&real).collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}");
    }
}

/// The rules, each with its name, as far as a line-based parser can tell them apart.
fn rules(alerts: &str) -> Vec<(String, String)> {
    let rules = alerts.split("- alert: ").skip(1);
    rules.map(|rule| (rule.lines().next().unwrap().to_owned(), rule.to_owned())).collect()
}

#[test]
fn each_alert_is_explained_and_tested() {
    let rules = rules(&document("docs/operations/alerts.yml"));
    let text = document("docs/operations.md");
    let headings = text.lines().filter_map(|line| line.strip_prefix("### Lockmod"));
    let explained: BTreeSet<String> = headings.map(|name| format!("Lockmod{name}")).collect();
    assert_eq!(explained, rules.iter().map(|(name, _)| name.clone()).collect());
    let tests = document("docs/operations/alerts_test.yml");
    for (name, rule) in &rules {
        assert!(tests.contains(&format!("alertname: {name}\n")), "{name} is shown to fire");
        assert!(tests.contains(&format!("alertname: {name}, exp_alerts: []")), "and not to");
        let (_, annotations) = rule.split_once("        annotations:\n").unwrap();
        let keys: Vec<&str> =
            annotations.lines().filter_map(|line| Some(line.trim().split_once(": ")?.0)).collect();
        assert_eq!(keys, ["summary", "description", "runbook_url"], "{name}");
        let anchor = format!("/docs/operations.md#{}\n", name.to_lowercase());
        assert!(annotations.contains(&anchor), "{name}: {annotations}");
        let is_known = |severity| rule.contains(&format!("severity: {severity}\n"));
        assert!(is_known("critical") || is_known("warning"), "{name}: {rule}");
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations");
    for args in [["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]] {
        let output = Command::new("promtool").args(args).current_dir(folder).output();
        let output = output.expect("promtool runs: `.ci/install` installs it");
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {text}");
    }
}

/// Waiting in line is normal: no alert looks at it, and none counts attempts that lost.
#[test]
fn no_alert_is_about_a_queue() {
    let queues = ["wait_seconds", "waiters", "oldest_waiter", "handed_over", "held", "acquired"];
    for (name, rule) in rules(&document("docs/operations/alerts.yml")) {
        let expression = rule.lines().find_map(|line| line.trim().strip_prefix("expr: ")).unwrap();
        let found = queues.iter().find(|word| expression.contains(*word));
        assert_eq!(found, None, "{name}: {expression}");
    }
}

/// With several sets of nodes, each panel shows only the selected ones.
#[test]
fn the_dashboard_asks_for_the_chosen_clusters_only() {
    let text = document("docs/operations/dashboard.json");
    let queries = text.lines().filter_map(|line| line.trim().strip_prefix("\"expr\": "));
    let mut count = 0;
    for query in queries {
        let metrics =
            query.matches("lockmod_").count() + query.matches("distributed_lock_").count();
        let chosen = query.matches("{cluster=~\\\"$cluster\\\"").count();
        assert!(metrics > 0 && metrics == chosen, "{query}");
        count += 1;
    }
    assert!(count > 20, "{count} queries");
    assert!(text.contains("\"query\": \"label_values(lockmod_nodes, cluster)\""));
}

#[test]
fn prometheus_reads_what_the_exporter_writes() {
    use std::io::Write;
    let nodes = nodes(1);
    let text = Exporter::start_with(&nodes, &["--cluster", "pay \"1\""]).metrics();
    let lines = || text.lines().filter(|line| !line.starts_with('#'));
    for line in lines() {
        assert!(line.contains("{cluster=\"pay \\\"1\\\"\""), "{line}");
    }
    let version = concat!("\",version=\"", env!("CARGO_PKG_VERSION"), "\"} 1");
    assert!(lines().any(|line| line.starts_with("lockmod_build_info") && line.ends_with(version)));
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
