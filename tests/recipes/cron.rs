//! docs/recipes.md, "A job that runs on one host": several hosts begin at the same time.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::{Server, spawn, wait_until};
use crate::{nodes, urls};

const HOSTS: usize = 4;

fn lockmod(nodes: &[Server], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockmod"));
    command.env("LOCKMOD_NODES", urls(nodes)).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn codes(hosts: Vec<Child>) -> Vec<i32> {
    let code = |mut host: Child| host.wait().unwrap().code().unwrap();
    let mut codes: Vec<i32> = hosts.into_iter().map(code).collect();
    codes.sort_unstable();
    codes
}

/// The job holds the lock for as long as others may come: here until they have been refused.
#[test]
fn a_job_runs_on_exactly_one_host() {
    let nodes = nodes(3);
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    let over = folder.path().join("over");
    let job = "echo $LOCKMOD_FENCE >> ran; until [ -e over ]; do sleep 0.05; done";
    let start = || {
        let mut command = lockmod(&nodes, folder.path());
        command.args(["run", "nightly", "--wait", "5s", "--", "sh", "-c", job]);
        spawn(command).unwrap()
    };
    let mut hosts: Vec<Child> = (0..HOSTS).map(|_| start()).collect();
    let mut refused = 0;
    wait_until("all others have been refused", || {
        let is_over = |host: &mut Child| host.try_wait().unwrap().is_some();
        refused = hosts.iter_mut().map(is_over).filter(|is_over| *is_over).count();
        refused == HOSTS - 1
    });
    fs::write(over, "").unwrap();
    assert_eq!(codes(hosts), [0, 120, 120, 120]);
    assert_eq!(fs::read_to_string(ran).unwrap().lines().count(), 1);
}

/// The lock has the day in its name, and is not given back.
#[test]
fn a_job_runs_once_a_day() {
    let nodes = nodes(3);
    let folder = tempfile::tempdir().unwrap();
    let start = |day: &str, wait: &str| {
        let mut command = lockmod(&nodes, folder.path());
        command.args(["acquire", day, "--ttl", "20h", "--wait", wait]);
        spawn(command).unwrap()
    };
    let hosts = (0..HOSTS).map(|_| start("nightly-2026-11-21", "5s")).collect();
    assert_eq!(codes(hosts), [0, 120, 120, 120]);
    // Somebody is late, and the next day comes.
    assert_eq!(codes(vec![start("nightly-2026-11-21", "0s")]), [120]);
    assert_eq!(codes(vec![start("nightly-2026-11-22", "5s")]), [0]);
}
