//! examples/leader.rs: one leads, then another.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use self::example::campaign;
use crate::common::{PATIENCE, Server, spawn};
use crate::{nodes, urls};

#[path = "../../examples/leader.rs"]
#[allow(dead_code, reason = "its main is not ours")]
mod example;

/// Not a test: the process that the tests start, by running themselves with this name.
#[test]
#[ignore = "a process of other tests"]
fn candidate() {
    if let Ok(name) = std::env::var("LOCKMOD_CANDIDATE") {
        campaign("scheduler", &name).unwrap();
    }
}

/// Candidates, and what they say.
struct Election {
    nodes: String,
    candidates: Vec<(String, Child)>,
    lines: Sender<String>,
    said: Receiver<String>,
}

impl Election {
    fn of(nodes: &[Server], names: &[&str]) -> Election {
        let (lines, said) = channel();
        let mut election = Election { nodes: urls(nodes), candidates: Vec::new(), lines, said };
        for name in names {
            election.add(name);
        }
        election
    }

    fn add(&mut self, name: &str) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "leader::candidate", "--ignored", "--nocapture"]);
        command.env("LOCKMOD_CANDIDATE", name).env("LOCKMOD_NODES", &self.nodes);
        command.stdout(Stdio::piped());
        let mut child = spawn(command).unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let lines = self.lines.clone();
        thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
        });
        self.candidates.push((name.to_owned(), child));
    }

    /// The next line about leading.
    fn hear(&self) -> String {
        loop {
            let line = self.said.recv_timeout(PATIENCE).expect("somebody leads or resigns");
            // The test runner's own lines are in between.
            let line = line.split(" ... ").last().unwrap_or_default().to_owned();
            if line.contains(" leads") || line.contains(" resigns") {
                return line;
            }
        }
    }

    /// Who leads now, and in which term.
    fn leader(&self) -> (String, u64) {
        let line = self.hear();
        let (name, term) = line.split_once(" leads, term ").unwrap_or_else(|| panic!("{line}"));
        (name.to_owned(), term.parse().unwrap())
    }

    fn take(&mut self, name: &str) -> Child {
        let at = self.candidates.iter().position(|(other, _)| other == name).unwrap();
        self.candidates.remove(at).1
    }
}

impl Drop for Election {
    fn drop(&mut self) {
        for (_, child) in &mut self.candidates {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn another_leads_in_a_later_term_when_the_leader_is_gone() {
    let nodes = nodes(3);
    let mut election = Election::of(&nodes, &["ada", "bob", "eve"]);
    let (first, term) = election.leader();

    // A crash: the next one leads when the lease has ended.
    election.take(&first).kill().unwrap();
    let (second, later) = election.leader();
    assert!(second != first && later > term, "{second} in term {later} after {term}");

    // Resigning: the next one leads at once.
    let mut leader = election.take(&second);
    kill_process(Pid::from_child(&leader), Signal::TERM).unwrap();
    assert_eq!(election.hear(), format!("{second} resigns"));
    assert!(leader.wait().unwrap().success());
    let (third, last) = election.leader();
    assert!(third != first && third != second && last > later);
}

#[test]
fn a_leader_without_a_quorum_stops_and_leads_again_later() {
    let mut nodes = nodes(3);
    let mut election = Election::of(&nodes, &["ada"]);
    let (name, term) = election.leader();
    nodes[0].kill();
    nodes[1].kill();
    assert!(election.hear().contains("ada leads no more"));
    nodes[0].start_again();
    nodes[1].start_again();
    let (again, later) = election.leader();
    assert!(again == name && later > term, "term {later} after {term}");
    election.take("ada").kill().unwrap();
}
