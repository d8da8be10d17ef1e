//! All languages at once, and the command, on one lock.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use lockmod::client::Locker;

use crate::common::{PATIENCE, Server, wait_at_most};
use crate::{LANGUAGES, Worker, nodes};

const NAME: &str = "shared";
/// How often each of the clients holds the lock.
const ROUNDS: usize = 12;
/// Clients of each language.
const CLIENTS: usize = 2;

/// As the workers do it, in Rust.
fn rounds_in_rust(urls: &[String], label: &str, file: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locker = Locker::builder().nodes(urls).label(label).ttl(Duration::from_secs(10));
        let locker = locker.timeout(Duration::from_secs(2));
        let locker = locker.build().unwrap();
        let mut log = File::options().append(true).open(file).unwrap();
        for _ in 0..ROUNDS {
            let guard = locker.acquire(NAME).wait(Duration::from_secs(60)).await.unwrap();
            log.write_all(format!("enter {} {label}\n", guard.fence()).as_bytes()).unwrap();
            assert!(!guard.validity().is_zero());
            log.write_all(format!("leave {} {label}\n", guard.fence()).as_bytes()).unwrap();
            // While two nodes are down, one that is slow makes it unknown whether a quorum heard.
            let _ = guard.release().await;
            // Time for the others, who are in a pause of theirs.
            tokio::time::sleep(Duration::from_millis(rand::random_range(0..100))).await;
        }
    });
}

/// The same by the command, which the shell starts again and again. It tries for as long as a
/// quorum that is away may take to come back.
fn rounds_in_the_shell(urls: &[String], file: &Path) {
    let line = r#"echo "enter $LOCKMOD_FENCE Command" >> "$LOG"
        echo "leave $LOCKMOD_FENCE Command" >> "$LOG""#;
    for _ in 0..ROUNDS {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockmod"));
        command
            .args(["run", NAME, "--wait", "60s", "--ttl", "10s", "--timeout", "2s"])
            .args(["--", "sh", "-c", line])
            .env("LOCKMOD_NODES", urls.join(","))
            .env("LOG", file);
        // Its own code, not that of a release that too few nodes confirmed in time.
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", output.status);
    }
}

/// Short lines that are appended to a file are in it in the order of their writing, whichever
/// process they come from. So if every `enter` is followed by its own `leave`, no two holders were
/// ever inside at the same time.
#[test]
fn rust_python_node_and_the_command_exclude_each_other_and_fences_rise() {
    let mut nodes = nodes(5);
    let urls: Vec<String> = nodes.iter().map(Server::url).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log");
    File::create(&file).unwrap();
    let count = || fs::read_to_string(&file).unwrap().lines().count();

    let mut workers = Vec::new();
    for language in LANGUAGES {
        for number in 0..CLIENTS {
            let mut worker = Worker::start(language, &nodes, &format!("{language:?}-{number}"));
            assert_eq!(worker.ask("locker 10000"), "ready");
            workers.push(worker);
        }
    }
    for worker in &mut workers {
        worker.tell(format_args!("rounds {NAME} {ROUNDS} {}", file.display()));
    }
    let lines_in_all = ((LANGUAGES.len() + 1) * CLIENTS + 1) * ROUNDS * 2;
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (urls, file) = (&urls, &file);
            scope.spawn(move || rounds_in_rust(urls, &format!("Rust-{number}"), file));
        }
        scope.spawn(|| rounds_in_the_shell(&urls, &file));
        // Two nodes are gone for a while, and come back: the third of the time each way.
        let patience = PATIENCE * 2;
        wait_at_most(patience, "a third is done", || (count() > lines_in_all / 3).then_some(()));
        for node in &mut nodes[..2] {
            node.kill();
        }
        wait_at_most(patience, "two are done", || (count() > lines_in_all * 2 / 3).then_some(()));
        for node in &mut nodes[..2] {
            node.start_again();
        }
    });
    for worker in &mut workers {
        assert_eq!(worker.hear(), "done");
    }

    let log = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), lines_in_all);
    let mut last = 0;
    let mut languages = Vec::new();
    for pair in lines.chunks(2) {
        let holder = pair[0].strip_prefix("enter ").unwrap_or_else(|| panic!("{pair:?}\n{log}"));
        assert_eq!(pair[1].strip_prefix("leave "), Some(holder), "two were inside\n{log}");
        let (fence, label) = holder.split_once(' ').unwrap();
        let fence: i64 = fence.parse().unwrap();
        assert!(fence > last, "{fence} after {last}\n{log}");
        last = fence;
        languages.push(label.split('-').next());
    }
    // It was not one language after the other: each had the lock before any other was done with it.
    // But the reference stands in no line, and may have it late.
    let everybody = ["Rust", "Python", "Node", "Command", "Reference"];
    for one in &everybody[..4] {
        let first = languages.iter().position(|language| *language == Some(*one));
        for other in everybody {
            let last = languages.iter().rposition(|language| *language == Some(other));
            assert!(first < last, "{one} began when {other} was done\n{log}");
        }
    }
}
