//! The `lockmod` command: what it prints, its exit codes, its signals.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use redis::Client;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{
    PATIENCE, Port, Server, module_path, server_binary, spawn, start_nodes, wait_until,
};
use crate::screen::Screen;
use crate::{leases, nodes};

/// A token that no lock has.
pub(crate) const NO_TOKEN: &str = "0000000000000000000000000000000000000000";

fn urls(nodes: &[Server]) -> String {
    nodes.iter().map(Server::url).collect::<Vec<_>>().join(",")
}

pub(crate) fn lockmod(nodes: &[Server], args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockmod"));
    command.env("LOCKMOD_NODES", urls(nodes)).args(args).stdin(Stdio::null());
    command
}

fn output(nodes: &[Server], args: &[&str]) -> Output {
    lockmod(nodes, args).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
pub(crate) fn succeeds(nodes: &[Server], args: &[&str]) -> String {
    let output = output(nodes, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[track_caller]
pub(crate) fn fails(nodes: &[Server], args: &[&str], code: i32) -> String {
    let output = output(nodes, args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    stderr
}

pub(crate) fn start(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    spawn(command).unwrap()
}

/// `lockmod nodes` with the module and server under test, and its files in this folder.
pub(crate) fn nodes_command(args: &[&str], folder: &Path) -> Command {
    let mut command = lockmod(&[], &["nodes"]);
    command.args(args).arg("--module").arg(module_path()).arg("--server").arg(server_binary());
    command.env("TMPDIR", folder);
    command
}

/// Local nodes that are up.
pub(crate) struct RunningNodes {
    pub(crate) child: Child,
    /// What the command has said they are.
    pub(crate) said: String,
    pub(crate) urls: String,
    /// What it says after that.
    pub(crate) lines: Lines<BufReader<ChildStdout>>,
}

impl RunningNodes {
    pub(crate) fn start(command: Command) -> RunningNodes {
        let mut child = start(command);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let [said, export] = [0, 1].map(|_| lines.next().unwrap().unwrap());
        let urls = export.strip_prefix("export LOCKMOD_NODES=").unwrap().to_owned();
        RunningNodes { child, said, urls, lines }
    }
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// The number that a shell has written to this file.
pub(crate) fn number_in(file: &Path) -> i32 {
    wait_until("the command has begun", || {
        fs::read_to_string(file).is_ok_and(|t| t.ends_with('\n'))
    });
    fs::read_to_string(file).unwrap().trim().parse().unwrap()
}

/// Whether a process no longer runs; a zombie counts as gone.
pub(crate) fn is_gone(process: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
}

#[test]
fn a_command_runs_under_the_lock_and_its_exit_code_is_passed_on() {
    let nodes = nodes(3);
    let out =
        succeeds(&nodes, &["run", "job", "--", "sh", "-c", "echo $LOCKMOD_FENCE $LOCKMOD_NAME"]);
    assert_eq!(out, "1 job\n");
    assert_eq!(fails(&nodes, &["run", "job", "--", "sh", "-c", "exit 7"], 7), "");
    fails(&nodes, &["run", "job", "--", "sh", "-c", "kill -KILL $$"], 128 + 9);
    let missing = fails(&nodes, &["run", "job", "--", "/no/such/command"], 127);
    assert!(missing.contains("/no/such/command"), "{missing}");
    let text = tempfile::NamedTempFile::new().unwrap();
    fails(&nodes, &["run", "job", "--", text.path().to_str().unwrap()], 126);
    fails(&nodes, &["run", "job"], 125);
    fails(&nodes, &["run", "job", "--ttl", "5", "--", "true"], 125);
    fails(&nodes[..2], &["run", "job", "--", "true"], 125);
    wait_until("nothing is left", || leases(&nodes, "job") == 0);
}

#[test]
fn whoever_is_in_the_way_is_named_and_the_pipe_stays_silent() {
    let mut nodes = nodes(3);
    let dir = tempfile::tempdir().unwrap();
    let begun = dir.path().join("begun");
    let script = format!("echo $$ > {}; exec sleep 100", begun.display());
    let mut holder =
        start(lockmod(&nodes, &["run", "job", "--label", "cron-3", "--", "sh", "-c", &script]));
    number_in(&begun);
    // It begins with the leases of a quorum; the last one may be in progress.
    wait_until("all nodes have its lease", || leases(&nodes, "job") == 3);
    let refused = fails(&nodes, &["run", "job", "--wait", "1200ms", "--", "true"], 120);
    assert_eq!(refused.lines().count(), 1, "{refused}");
    assert!(refused.contains("3 of 3 nodes hold it for cron-3 for up to"), "{refused}");
    fails(&nodes, &["acquire", "job"], 120);
    signal(&holder, Signal::TERM);
    assert_eq!(holder.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(leases(&nodes, "job"), 0);
    nodes[0].kill();
    nodes[1].kill();
    let refused = fails(&nodes, &["run", "job", "--wait", "100ms", "--", "true"], 121);
    assert!(refused.contains("unreachable (connection refused)"), "{refused}");
}

/// Regression: the log had one line, "no answer yet", whatever came after it.
#[test]
fn a_log_names_the_nodes_that_do_not_answer_and_says_when_that_changes() {
    let mut nodes = nodes(1);
    let place = format!("127.0.0.1:{}", nodes[0].port());
    nodes[0].pause();
    let mut acquiring = start(lockmod(&nodes, &["acquire", "job", "--wait", "1m"]));
    let lines = BufReader::new(acquiring.stderr.take().unwrap()).lines();
    let mut lines = lines.map(Result::unwrap);
    let begin = "lockmod: waiting for 'job': ";
    assert_eq!(lines.next().unwrap(), format!("{begin}no answer yet from {place}"));
    nodes[0].kill();
    let said = lines.next().unwrap();
    let down = format!("{begin}1 of 1 node unreachable: connection refused ({place})");
    assert_eq!(said, down);
    nodes[0].start_again();
    assert!(acquiring.wait().unwrap().success());
}

#[test]
fn a_person_at_a_terminal_is_told_how_many_stand_in_line() {
    let nodes = nodes(3);
    succeeds(&nodes, &["acquire", "job", "--label", "cron-3"]);
    let run = lockmod(&nodes, &["run", "job", "--wait", "10s", "--", "true"]);
    let mut wide = Screen::start(&run, (100, 4));
    wide.wait_for("everything is shown", |text| {
        text.contains("waiting for 'job': held by cron-3, ") && text.contains(" more")
    });
    // The holder comes first, then the number of waiters: they remain if the line is cut.
    let mut narrow = Screen::start(&run, (40, 4));
    narrow.wait_for("the line is cut", |text| {
        text.contains("2 in line") && text.contains("up to ") && text.trim_end().ends_with('…')
    });
    wide.press("\x03");
    assert_eq!(wide.end(), Some(128 + 2));
    // Updated more than once, and still one line.
    narrow.wait_for("the others have gone", |text| text.contains("1 in line"));
    assert_eq!(narrow.text().trim_end().lines().count(), 1, "{}", narrow.text());
    narrow.press("\x03");
    assert_eq!(narrow.end(), Some(128 + 2));
    for screen in [&mut wide, &mut narrow] {
        screen.wait_for("the line is gone, and nothing else is said", |text| text.trim() == "");
    }
}

#[test]
fn a_signal_reaches_the_command_and_its_answer_is_passed_on() {
    let nodes = nodes(3);
    let dir = tempfile::tempdir().unwrap();
    let begun = dir.path().join("begun");
    let script =
        format!("trap 'exit 42' INT; echo $$ > {}; while :; do sleep 0.01; done", begun.display());
    let mut child = start(lockmod(&nodes, &["run", "job", "--", "sh", "-c", &script]));
    number_in(&begun);
    signal(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(42));
    assert_eq!(leases(&nodes, "job"), 0);
}

#[test]
fn an_interrupted_wait_leaves_nothing_behind() {
    let nodes = nodes(3);
    let token = "t";
    for node in &nodes[..2] {
        node.run(&format!("LOCK.ACQUIRE job {token} 60000")).unwrap();
    }
    let mut child = start(lockmod(&nodes, &["run", "job", "--", "true"]));
    wait_until("it tries", || {
        nodes[2].run("LOCK.FENCE job").is_ok_and(|fence| fence != redis::Value::Int(0))
    });
    signal(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(leases(&nodes, "job"), 2);
}

/// A shell that ignores TERM and starts another that does the same.
fn stubborn(parent: &Path, other: &Path) -> String {
    format!(
        "trap '' TERM; sh -c 'echo $$ > {}; while :; do sleep 0.01; done' & \
         echo $$ > {}; while :; do sleep 0.01; done",
        other.display(),
        parent.display()
    )
}

#[test]
fn a_lost_lock_ends_the_whole_process_group_before_the_lease_does() {
    let nodes = nodes(3);
    let dir = tempfile::tempdir().unwrap();
    let (parent, other) = (dir.path().join("parent"), dir.path().join("other"));
    let script = stubborn(&parent, &other);
    let args = ["run", "job", "--ttl", "4s", "--timeout", "200ms", "--", "sh", "-c", &script];
    let child = start(lockmod(&nodes, &args));
    let (parent, other) = (number_in(&parent), number_in(&other));
    nodes.iter().for_each(Server::pause);
    let start = Instant::now();
    wait_until("the group is gone", || is_gone(parent) && is_gone(other));
    let took = start.elapsed();
    assert!(took < Duration::from_millis(3_950), "the lease may have ended: {took:?}");
    nodes.iter().for_each(Server::resume);
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(122), "{said}");
    assert!(said.contains("it was not extended in time: 3 of 3 nodes timed out"), "{said}");
}

#[test]
fn a_writer_becomes_a_reader_by_token() {
    let nodes = nodes(3);
    let out = succeeds(&nodes, &["acquire", "job", "--json"]);
    let token = out.split('"').skip_while(|word| *word != "token").nth(2).unwrap();
    assert!(out.contains(",\"shared\":false,"), "{out}");
    fails(&nodes, &["acquire", "job", "--shared"], 120);
    assert!(succeeds(&nodes, &["extend", "job", token, "--shared"]).starts_with("valid for 29"));
    let out = succeeds(&nodes, &["acquire", "job", "--shared", "--json"]);
    assert!(out.contains("\"fence\":1,\"shared\":true,"), "{out}");
    assert!(succeeds(&nodes, &["extend", "job", token, "--shared"]).starts_with("valid for 29"));
    assert!(succeeds(&nodes, &["info", "job"]).contains("held, fence 1 by 2 readers"));
    let shown = succeeds(&nodes, &["status"]);
    assert!(shown.contains("2 readers (") && shown.matches(", ").count() > 1, "{shown}");
}

/// It was printed as it had been before the command waited for the node that hung.
#[test]
fn the_validity_that_is_printed_is_what_is_left() {
    let nodes = nodes(3);
    nodes[0].pause();
    let out = succeeds(&nodes, &["acquire", "job", "--json", "--ttl", "6s", "--timeout", "2s"]);
    nodes[0].resume();
    let (_, rest) = out.split_once("\"validity_ms\":").unwrap();
    let validity: u64 = rest.trim_end().trim_end_matches('}').parse().unwrap();
    assert!(validity <= 4_000, "the hung node had 2 s to answer: {out}");
}

#[test]
fn a_lease_is_taken_extended_looked_at_and_given_back_by_token() {
    let mut nodes = nodes(3);
    let out = succeeds(&nodes, &["acquire", "job", "--label", "me", "--json"]);
    let (_, rest) = out.split_once("\"token\":\"").unwrap();
    let (token, rest) = rest.split_once('"').unwrap();
    assert!(rest.starts_with(",\"fence\":1,\"shared\":false,\"validity_ms\":2"), "{out}");
    assert_eq!(leases(&nodes, "job"), 3);
    assert!(succeeds(&nodes, &["info", "job"]).contains("held, fence 1 by me for"));
    let listed = succeeds(&nodes, &["list"]);
    assert!(listed.starts_with("job: held, fence 1 by me") && listed.contains("on 3 of 3 nodes"));
    assert_eq!(succeeds(&nodes, &["fence", "job"]), "1\n");
    assert!(
        succeeds(&nodes, &["extend", "job", token, "--ttl", "1m"]).starts_with("valid for 59.")
    );
    assert_eq!(succeeds(&nodes, &["release", "job", token]), "released\n");
    fails(&nodes, &["release", "job", token], 122);
    fails(&nodes, &["extend", "job", token], 122);
    fails(&nodes, &["release", "job", "xyz"], 125);
    // Regression: its key was deleted, with a warning about a holder; without a key, it failed.
    for name in ["job", "never"] {
        let said = fails(&nodes, &["release", "--force", name], 122);
        assert_eq!(said, format!("lockmod: nobody holds lock '{name}'\n"));
    }
    assert_eq!(succeeds(&nodes, &["list"]), "");
    assert!(succeeds(&nodes, &["list", "--all"]).starts_with("job: free, fence 1"));
    assert_eq!(succeeds(&nodes, &["fence", "job", "--json"]), "{\"name\":\"job\",\"fence\":1}\n");
    let info = succeeds(&nodes, &["info", "job", "--json"]);
    assert!(info.contains("\"state\":\"free\",\"fence\":1,"), "{info}");
    // Regression: the only node left decided that it is free.
    nodes[0].kill();
    nodes[1].kill();
    let listed = text(&output(&nodes, &["list", "--all"]).stdout);
    assert!(listed.starts_with("job: no lease known, fence 1"), "{listed}");
}

#[test]
fn nodes_without_the_module_are_refused_by_every_command_that_asks_them() {
    let bare = start_nodes(3, |_| Server::builder().without_module());
    for args in [
        &["run", "job", "--", "true"][..],
        &["lock", "job"],
        &["acquire", "job"],
        &["release", "job", NO_TOKEN],
        &["release", "--force", "job"],
        &["extend", "job", NO_TOKEN],
        &["fence", "job"],
        &["info", "job"],
        &["list"],
        &["status"],
    ] {
        let output = output(&bare, args);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(123), "{args:?}: {said}");
        assert!(said.contains("without the module"), "{args:?}: {said}");
    }
}

#[test]
fn the_demo_ends_by_itself_in_time_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_lockmod"))
        .arg("demo")
        .arg("--module")
        .arg(module_path())
        .arg("--server")
        .arg(server_binary())
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}{}", text(&output.stderr));
    // A slow machine may need one more attempt, and skip a number.
    let (_, fences) = out.split_once("the fences rose throughout: ").unwrap();
    let fences: Vec<u64> = fences.trim().split(" < ").map(|fence| fence.parse().unwrap()).collect();
    assert!(fences.len() == 6 && fences.is_sorted_by(|a, b| a < b), "{out}");
    assert!(out.contains("unreachable (connection "), "{out}");
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_demo_of_a_failover_shows_the_wait_and_a_larger_fence() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = lockmod(&[], &["demo", "--failover", "--module"]);
    command.arg(module_path()).arg("--server").arg(server_binary());
    let output = command.env("TMPDIR", folder.path()).output().unwrap();
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}{}", text(&output.stderr));
    let told = ["the master is killed", "the lock is lost", "replicas support it", "bob holds"];
    let places: Vec<usize> = told.map(|words| out.rfind(words).expect(words)).into();
    assert!(places[0] < places[1] && places[1] < places[2] && places[2] < places[3], "{out}");
    assert!(out.contains("in quarantine for"), "{out}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn local_nodes_live_until_ctrl_c() {
    let folder = tempfile::tempdir().unwrap();
    let command = nodes_command(&["--count", "3"], folder.path());
    let RunningNodes { mut child, urls, .. } = RunningNodes::start(command);
    let run = Command::new(env!("CARGO_BIN_EXE_lockmod"))
        .args(["run", "job", "--nodes", &urls, "--", "true"])
        .status()
        .unwrap();
    assert!(run.success());
    // Regression: it did not report a server that died.
    let first = Client::open(urls.split(',').next().unwrap()).unwrap();
    let mut first = first.get_connection().unwrap();
    let server: String = redis::cmd("INFO").arg("server").query(&mut first).unwrap();
    let (_, rest) = server.split_once("process_id:").unwrap();
    let process: i32 = rest.lines().next().unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("has ended (signal: 9"), "{said}");
    signal(&child, Signal::TERM);
    assert!(child.wait().unwrap().success());
    let left: Vec<PathBuf> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Regression: the log that it named was gone.
#[test]
fn the_files_of_local_nodes_that_have_all_died_stay() {
    let folder = tempfile::tempdir().unwrap();
    let command = nodes_command(&["--count", "1"], folder.path());
    let RunningNodes { child, urls, .. } = RunningNodes::start(command);
    let mut node = Client::open(urls).unwrap().get_connection().unwrap();
    // It ends, and does not answer.
    let _ = redis::cmd("SHUTDOWN").arg("NOSAVE").exec(&mut node);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let said = text(&output.stderr);
    let (_, place) = said.trim().split_once("their files stay in ").expect(&said);
    assert!(Path::new(place).join("node-1/redis.log").exists(), "{said}");
}

/// Regression: they kept running after `lockmod nodes` was killed, and the list that it printed was
/// refused.
#[test]
fn local_nodes_go_with_a_command_that_is_killed_and_two_need_a_flag() {
    let folder = tempfile::tempdir().unwrap();
    for (count, said, hint) in [("1", "1 node in ", None), ("2", "2 nodes in ", Some("--even"))] {
        let command = nodes_command(&["--count", count], folder.path());
        let mut nodes = RunningNodes::start(command);
        assert!(nodes.said.starts_with(said), "{}", nodes.said);
        if let Some(hint) = hint {
            assert!(nodes.lines.next().unwrap().unwrap().contains(hint));
        }
        let RunningNodes { mut child, urls, .. } = nodes;
        let list = ["list", "--nodes", &urls];
        let list: Vec<&str> = list.into_iter().chain(hint).collect();
        succeeds(&[], &list);
        signal(&child, Signal::KILL);
        child.wait().unwrap();
        let is_down = |url| Client::open(url).unwrap().get_connection().is_err();
        wait_until("the servers are gone", || urls.split(',').all(is_down));
    }
}

/// Regression: the command waited for 10 seconds, and then reported a node that does not answer.
#[test]
fn a_server_that_cannot_run_is_reported_at_once_in_its_own_words() {
    let (module, server) = (module_path().display().to_string(), server_binary());
    let server = server.display().to_string();
    for (module, server, said) in [
        ("/etc/passwd", &*server, "Module /etc/passwd failed to load"),
        (&*module, "/bin/true", "ended instead of serving (exit status: 0): it said nothing"),
        (&*module, "/bin/ls", "/bin/ls ended instead of serving (exit status: 0): "),
        (&*module, "/no/such/server", "cannot start /no/such/server: No such file"),
    ] {
        for command in ["nodes", "demo"] {
            let folder = tempfile::tempdir().unwrap();
            let mut lockmod = lockmod(&[], &[command, "--module", module, "--server", server]);
            let output = lockmod.env("TMPDIR", folder.path()).output().unwrap();
            let stderr = text(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{module} {server}: {stderr}");
            assert!(stderr.contains(said) && stderr.lines().count() == 1, "{stderr}");
            assert!(!stderr.contains("nodes answer"), "{stderr}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }
}

#[test]
fn local_nodes_have_the_ports_that_are_asked_for() {
    let (port, folder) = (Port::reserve(), tempfile::tempdir().unwrap());
    let args = ["--count", "1", "--port", &port.number().to_string()];
    let nodes = || nodes_command(&args, folder.path());
    let RunningNodes { mut child, urls, .. } = RunningNodes::start(nodes());
    assert_eq!(urls, format!("redis://127.0.0.1:{}", port.number()));
    let second = nodes().output().unwrap();
    let said = text(&second.stderr);
    assert_eq!(second.status.code(), Some(125), "{said}");
    let expected = format!("cannot listen on 127.0.0.1:{}: Address already in use", port.number());
    assert!(said.contains(&expected) && said.contains("another --port"), "{said}");
    signal(&child, Signal::TERM);
    assert!(child.wait().unwrap().success());
    let high = lockmod(&[], &["nodes", "--port", "65535", "--count", "2", "--module"])
        .arg(module_path())
        .output()
        .unwrap();
    assert!(text(&high.stderr).contains("no port above 65535"), "{}", text(&high.stderr));
    // Regression: replicas were ignored beside the first two, and the third error named a variable
    // of another subcommand.
    for (args, told) in [
        (&["--sentinel", "--replicas", "1"][..], "cannot be used with"),
        (&["--count", "3", "--replicas", "1"], "cannot be used with"),
        (&["--replicas", "1"], "--cluster <MASTERS>\n"),
        (&["--cluster", "2", "--replicas", "1"], "--replicas needs --cluster 3 or more"),
        (&["--cluster", "3", "--replicas", "6"], "give a whole number from 0 to 5"),
    ] {
        let output = lockmod(&[], &[&["nodes"], args].concat()).output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(125) && said.contains(told), "{args:?}: {said}");
    }
}

#[test]
fn the_module_is_found_beside_the_command_and_where_it_is_installed() {
    let folder = tempfile::tempdir().unwrap();
    let (bin, modules) = (folder.path().join("bin"), folder.path().join("lib/redis/modules"));
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(&modules).unwrap();
    let program = bin.join("lockmod");
    fs::copy(env!("CARGO_BIN_EXE_lockmod"), &program).unwrap();
    let demo = || {
        let mut command = Command::new(&program);
        command.arg("demo").arg("--server").arg(server_binary()).env_remove("LOCKMOD_MODULE");
        let output = command.env("TMPDIR", folder.path()).output().unwrap();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (code, said) = demo();
    assert_eq!(code, Some(125), "{said}");
    assert!(said.contains("give its path with --module"), "{said}");
    for place in [modules.join("liblockmod.so"), bin.join("liblockmod.so")] {
        std::os::unix::fs::symlink(module_path(), &place).unwrap();
        let (code, said) = demo();
        assert_eq!(code, Some(0), "{said}");
        fs::remove_file(&place).unwrap();
    }
}
