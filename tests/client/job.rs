//! `lockmod run` as a job of a shell, at a terminal: Ctrl-Z, `fg`, `bg`, signals, and the keys; and
//! as process 1.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process, set_child_subreaper};

use crate::cli::{is_gone, lockmod, number_in, start, succeeds};
use crate::common::{Server, preload, skip, wait_until};
use crate::screen::Screen;
use crate::{is_renewed, leases, nodes};

/// An interactive shell with the command at hand, whose commands can be stopped.
struct Shell {
    screen: Screen,
    folder: tempfile::TempDir,
    count: u32,
}

impl Shell {
    fn start(nodes: &[Server]) -> Shell {
        let folder = tempfile::tempdir().unwrap();
        let urls: Vec<String> = nodes.iter().map(Server::url).collect();
        let mut bash = Command::new("bash");
        bash.args(["--norc", "--noprofile", "-i"]).env("PS1", "$ ").env("HISTFILE", "");
        bash.env("LOCKMOD_NODES", urls.join(",")).env("FOLDER", folder.path());
        let lockmod = Path::new(env!("CARGO_BIN_EXE_lockmod")).parent().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        bash.env("PATH", format!("{}:{path}", lockmod.display()));
        let mut shell = Shell { screen: Screen::start(&bash, (100, 40)), folder, count: 0 };
        shell.answers();
        shell
    }

    fn type_line(&mut self, line: &str) {
        self.screen.press(&format!("{line}\n"));
    }

    /// The shell reads commands: its prompt is there, and the terminal is its own.
    #[track_caller]
    fn answers(&mut self) -> String {
        self.count += 1;
        // What is typed is shown too, and differs from what it prints.
        self.type_line(&format!("echo code=$? n=$(({} + 0))", self.count));
        let expected = format!(" n={}\n", self.count);
        self.screen.wait_for("the shell answers", |text| format!("{text}\n").contains(&expected));
        let text = self.screen.text();
        let line = text.lines().rev().find(|line| line.contains(expected.trim_end())).unwrap();
        line.split_whitespace().next().unwrap().trim_start_matches("code=").to_owned()
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// The number of a process that a command has written into a file.
    fn number(&self, name: &str) -> i32 {
        number_in(&self.file(name))
    }
}

/// The letter of a process's state: R, S, T for stopped.
fn state(process: i32) -> char {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.unwrap_or('-')
}

fn parent(process: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split_whitespace().nth(1)?.parse().ok()
}

#[track_caller]
fn wait_for_state(process: i32, expected: char) {
    wait_until("the process is in that state", || state(process) == expected);
}

/// Writes its process number to a file and works on. Not a loop: a shell cannot be stopped at the
/// moment when it starts a command.
const WORK: &str = "sh -c 'echo $$ > $FOLDER/command; exec sleep 1000'";

/// Regression: the terminal hung, while the lock was renewed forever.
#[test]
fn ctrl_z_gives_the_prompt_back_and_fg_goes_on_while_the_lock_is_held() {
    let nodes = nodes(3);
    let mut shell = Shell::start(&nodes);
    shell.type_line(&format!("lockmod run job --ttl 1h -- {WORK}"));
    let command = shell.number("command");
    shell.screen.press("\x1a");
    wait_for_state(command, 'T');
    assert_eq!(shell.answers(), "147", "stopped, by STOP");
    wait_for_state(parent(command).unwrap(), 'T');
    assert_eq!(leases(&nodes, "job"), 3);
    shell.type_line("fg");
    wait_until("it goes on", || matches!(state(command), 'S' | 'R'));
    // A second time, now in the background.
    shell.screen.press("\x1a");
    wait_for_state(command, 'T');
    shell.answers();
    shell.type_line("bg");
    wait_until("it goes on", || matches!(state(command), 'S' | 'R'));
    shell.answers();
    assert_eq!(leases(&nodes, "job"), 3);
    // In the foreground again, but without a signal that says so: Ctrl-Z reaches lockmod alone.
    shell.type_line("fg");
    shell.screen.wait_for("it is in the foreground", |text| text.matches("fg\n").count() == 2);
    wait_until("it stops", || {
        shell.screen.press("\x1a");
        state(command) == 'T'
    });
    // What is typed before the prompt may be dropped.
    shell.screen.wait_for("the shell has the terminal", |text| text.trim_end().ends_with('$'));
    shell.answers();
    shell.type_line("fg");
    wait_until("it goes on", || matches!(state(command), 'S' | 'R'));
    shell.screen.press("\x03");
    wait_until("it has ended", || is_gone(command));
    assert_eq!(shell.answers(), "130");
    assert_eq!(leases(&nodes, "job"), 0);
}

/// Regression: the command was continued once it had the keys, in case it had asked for them too
/// early. A Ctrl-Z in between was lost.
#[test]
fn ctrl_z_is_not_lost_while_the_command_is_given_the_keys() {
    let nodes = nodes(1);
    let mut shell = Shell::start(&nodes);
    let library = preload::compile("terminal", include_str!("terminal.c"));
    let hold = "LOCKMOD_KEYS_GIVEN=$FOLDER/given LOCKMOD_KEYS_GATE=$FOLDER/gate";
    let preload = format!("LD_PRELOAD={} {hold}", library.display());
    shell.type_line(&format!("{preload} lockmod run job --ttl 1h -- {WORK}"));
    let command = shell.number("command");
    wait_until("the keys are given", || shell.file("given").exists());
    shell.screen.press("\x1a");
    wait_for_state(command, 'T');
    fs::write(shell.file("gate"), "").unwrap();
    assert_eq!(shell.answers(), "147", "stopped, by STOP");
    assert_eq!(state(command), 'T');
    shell.type_line("fg");
    wait_until("it goes on", || matches!(state(command), 'S' | 'R'));
    shell.screen.press("\x03");
    wait_until("it has ended", || is_gone(command));
    assert_eq!(shell.answers(), "130");
}

/// Regression: Ctrl-Z was lost, and `--at-least` continued in the foreground.
#[test]
fn ctrl_z_stops_what_holds_a_lock_after_its_command_has_ended() {
    let nodes = nodes(1);
    let mut shell = Shell::start(&nodes);
    let note = "sh -c 'echo $$ > $FOLDER/command; echo $PPID > $FOLDER/lockmod'";
    shell.type_line(&format!("lockmod run job --ttl 1h --at-least 1h -- {note}"));
    let (command, lockmod) = (shell.number("command"), shell.number("lockmod"));
    wait_until("the command has ended", || is_gone(command));
    wait_until("it stops", || {
        shell.screen.press("\x1a");
        state(lockmod) == 'T'
    });
    shell.answers();
    assert_eq!(leases(&nodes, "job"), 1);
    shell.type_line("fg");
    wait_until("it goes on", || matches!(state(lockmod), 'S' | 'R'));
    kill_process(Pid::from_raw(lockmod).unwrap(), Signal::INT).unwrap();
    wait_until("it ends", || is_gone(lockmod));
    assert_eq!(shell.answers(), "130", "as any job that INT ends before its time");
    assert_eq!(leases(&nodes, "job"), 0);
}

/// Regression: Ctrl-Z did nothing, or typed a `z`.
#[test]
fn ctrl_z_gives_the_terminal_back_while_top_watches() {
    let nodes = nodes(1);
    let mut shell = Shell::start(&nodes);
    shell.type_line("clear; sh -c 'echo $$ > $FOLDER/top; exec lockmod top'");
    let top = shell.number("top");
    let watches = |text: &str| text.contains("the only node grants locks");
    shell.screen.wait_for("it watches", watches);
    shell.screen.press("/job");
    shell.screen.wait_for("the filter is typed", |text| text.contains("filter: job"));
    shell.screen.press("\x1a");
    wait_for_state(top, 'T');
    assert_eq!(shell.answers(), "147", "stopped, by STOP");
    assert!(shell.screen.is_restored());
    shell.type_line("fg");
    shell.screen.wait_for("it is as it was", |text| watches(text) && text.contains("filter: job"));
    // A signal does the same.
    kill_process(Pid::from_raw(top).unwrap(), Signal::TSTP).unwrap();
    wait_for_state(top, 'T');
    // What is typed before the prompt may be dropped.
    shell.screen.wait_for("the shell has the terminal", |text| {
        text.matches("Stopped").count() == 2 && text.trim_end().ends_with('$')
    });
    shell.answers();
    shell.type_line("fg");
    shell.screen.wait_for("it is as it was", |text| watches(text) && text.contains("filter: job"));
    shell.screen.press("\rq");
    wait_until("it ends", || is_gone(top));
    assert_eq!(shell.answers(), "0");
    wait_until("the terminal is as it was", || shell.screen.is_restored());
}

/// Processes that wrote their numbers into files of this folder: killed at the end, if a failure
/// has left them running.
struct Leftovers<'a>(&'a Path);

impl Drop for Leftovers<'_> {
    fn drop(&mut self) {
        for file in fs::read_dir(self.0).into_iter().flatten().flatten() {
            let number = fs::read_to_string(file.path()).ok().and_then(|n| n.trim().parse().ok());
            if let Some(process) = number.and_then(Pid::from_raw) {
                let _ = kill_process(process, Signal::KILL);
            }
        }
    }
}

/// Regression: without a terminal the command was stopped forever, with its lock renewed. Once the
/// command had ended, lockmod stopped its whole process group.
#[test]
fn a_signal_to_stop_without_a_terminal_stops_lockmod_and_its_command_only() {
    let nodes = nodes(1);
    let folder = tempfile::tempdir().unwrap();
    // A shell that watches its jobs, in a session without a terminal; the second job has two more
    // processes in its group.
    let script = "set -m
        lockmod run one --ttl 1h -- sh -c 'echo $$ > command; exec sleep 1000' & echo $! > one
        sh -c 'echo $$ > script; sleep 1000 & echo $! > sibling
            lockmod run two --ttl 1h --at-least 1h -- touch ran & echo $! > two; wait' &
        wait; wait";
    let mut shell = Command::new("setsid");
    let lockmod = Path::new(env!("CARGO_BIN_EXE_lockmod")).parent().unwrap();
    let path = format!("{}:{}", lockmod.display(), std::env::var("PATH").unwrap_or_default());
    shell.args(["--fork", "bash", "-c", script]).current_dir(folder.path());
    shell.env("PATH", path).env("LOCKMOD_NODES", nodes[0].url());
    assert!(shell.status().unwrap().success());
    let _leftovers = Leftovers(folder.path());
    let number = |name: &str| number_in(&folder.path().join(name));
    let send = |to: i32, signal| kill_process(Pid::from_raw(to).unwrap(), signal).unwrap();

    let (command, one) = (number("command"), number("one"));
    for _ in 0..2 {
        send(one, Signal::TSTP);
        wait_for_state(command, 'T');
        wait_for_state(one, 'T');
        send(one, Signal::CONT);
        wait_until("both go on", || [one, command].iter().all(|it| state(*it) != 'T'));
    }
    send(one, Signal::TERM);
    wait_until("it has ended", || is_gone(command) && is_gone(one));

    let (script, sibling, two) = (number("script"), number("sibling"), number("two"));
    let ran = folder.path().join("ran");
    wait_until("its command has ended", || ran.exists() && has_no_child(two));
    send(two, Signal::TSTP);
    wait_for_state(two, 'T');
    assert!(state(script) != 'T' && state(sibling) != 'T');
    send(two, Signal::CONT);
    send(two, Signal::TERM);
    wait_until("it has ended", || is_gone(two));
    send(sibling, Signal::KILL);
}

fn has_no_child(process: i32) -> bool {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    children.is_ok_and(|children| children.trim().is_empty())
}

#[test]
fn a_job_that_is_continued_after_its_lease_ended_is_ended() {
    let nodes = nodes(3);
    let mut shell = Shell::start(&nodes);
    shell.type_line(&format!("lockmod run job --ttl 5s -- {WORK}"));
    let command = shell.number("command");
    shell.screen.press("\x1a");
    wait_for_state(command, 'T');
    shell.answers();
    wait_until("the lease has ended", || leases(&nodes, "job") == 0);
    succeeds(&nodes, &["acquire", "job", "--label", "successor"]);
    shell.type_line("fg");
    shell
        .screen
        .wait_for("the loss is shown", |text| text.contains("lock 'job' was lost and the command"));
    assert!(is_gone(command));
    assert_eq!(shell.answers(), "122");
    assert_eq!(leases(&nodes, "job"), 3, "the successor's");
}

#[test]
fn signals_work_on_a_job_that_was_stopped() {
    let nodes = nodes(3);
    let mut shell = Shell::start(&nodes);
    for (signal, code) in [(Signal::TERM, "143"), (Signal::HUP, "129"), (Signal::INT, "130")] {
        for is_stopped in [true, false] {
            let _ = fs::remove_file(shell.file("command"));
            shell.type_line(&format!("lockmod run job --ttl 1h -- {WORK}"));
            let command = shell.number("command");
            let lockmod = Pid::from_raw(parent(command).unwrap()).unwrap();
            shell.screen.press("\x1a");
            wait_for_state(command, 'T');
            shell.answers();
            if is_stopped {
                // As `kill %1` does: it is seen once the job is continued.
                kill_process(lockmod, signal).unwrap();
                shell.type_line("fg");
            } else {
                shell.type_line("fg");
                wait_until("it goes on", || matches!(state(command), 'S' | 'R'));
                kill_process(lockmod, signal).unwrap();
            }
            wait_until("the command has ended", || is_gone(command));
            assert_eq!(shell.answers(), code, "{signal:?}, stopped: {is_stopped}");
            assert_eq!(leases(&nodes, "job"), 0);
        }
    }
}

#[test]
fn a_script_has_its_terminal_back_and_is_stopped_as_a_whole() {
    let nodes = nodes(1);
    let mut shell = Shell::start(&nodes);
    let script = "lockmod run job -- true; read line; echo got $line; \
                  lockmod run job -- sh -c 'read line; echo $$ > $FOLDER/command; echo had $line; \
                  exec sleep 100'";
    fs::write(shell.file("script"), script).unwrap();
    shell.type_line("sh $FOLDER/script");
    shell.type_line("one");
    shell.screen.wait_for("the script reads", |text| text.contains("got one"));
    shell.type_line("two");
    shell.screen.wait_for("the command reads", |text| text.contains("had two"));
    let command = shell.number("command");
    shell.screen.press("\x1a");
    wait_for_state(command, 'T');
    shell.answers();
    shell.type_line("fg");
    wait_until("it goes on", || matches!(state(command), 'S' | 'R'));
    shell.screen.press("\x03");
    wait_until("it has ended", || is_gone(command));
    shell.answers();
}

/// Regression: when lockmod was started in the background, TTOU stopped it while it held the lock.
#[test]
fn a_job_in_the_background_runs_and_is_stopped_when_it_reads() {
    let nodes = nodes(1);
    let mut shell = Shell::start(&nodes);
    // With a lease that cannot end while the test waits.
    shell.type_line("lockmod run job --ttl 1h -- sh -c 'echo $$ > $FOLDER/command' &");
    shell.number("command");
    wait_until("it has ended", || leases(&nodes, "job") == 0);
    shell.type_line("lockmod run job -- sh -c 'echo $$ > $FOLDER/reader; read l; echo had $l' &");
    let reader = shell.number("reader");
    wait_for_state(reader, 'T');
    wait_for_state(parent(reader).unwrap(), 'T');
    shell.answers();
    shell.type_line("fg");
    shell.type_line("three");
    shell.screen.wait_for("it reads", |text| text.contains("had three"));
    assert_eq!(shell.answers(), "0");
}

/// Regression: the command took the keys from a pager after it in the pipeline, which was stopped
/// for that reason.
#[test]
fn a_pipeline_leaves_the_keys_to_whoever_reads_them() {
    let nodes = nodes(1);
    let mut shell = Shell::start(&nodes);
    let pager = "sh -c 'read key < /dev/tty; echo pager has $key; exec cat > /dev/null'";
    shell.type_line(&format!("lockmod run job -- {WORK} | {pager}"));
    let command = shell.number("command");
    shell.type_line("four");
    shell.screen.wait_for("the pager reads", |text| text.contains("pager has four"));
    shell.screen.press("\x1a");
    wait_for_state(command, 'T');
    shell.answers();
    shell.type_line("fg");
    wait_until("it goes on", || matches!(state(command), 'S' | 'R'));
    shell.screen.press("\x03");
    wait_until("it has ended", || is_gone(command));
    shell.answers();
    assert_eq!(leases(&nodes, "job"), 0);
    // A command that asks for the keys itself gets them, although its output goes elsewhere.
    shell.type_line("lockmod run job -- sh -c 'read l; echo had $l' | cat");
    shell.type_line("five");
    shell.screen.wait_for("the command reads", |text| text.contains("had five"));
    shell.answers();
}

/// A terminal of its own, without a shell that could continue it, as in `docker run -it`. In a
/// process namespace that was entered with the former process group, the command cannot see its own
/// group number, nor, in the second case, its parent's.
#[test]
fn ctrl_z_without_a_shell_stops_nothing() {
    let nodes = nodes(1);
    let inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"];
    let below = [&inside[..], &["sh", "-c", "\"$@\"; exit $?", "sh"]].concat();
    for within in [&[][..], &inside, &below] {
        if !within.is_empty() && !can_unshare() {
            skip("ctrl_z_without_a_shell_stops_nothing", NO_NAMESPACE);
            break;
        }
        let folder = tempfile::tempdir().unwrap();
        let began = folder.path().join("began");
        let script = format!("echo $$ > {}; read line; echo had $line", began.display());
        let run = lockmod(&nodes, &["run", "job", "--", "sh", "-c", &script]);
        let mut words = within.iter().map(OsStr::new).chain([run.get_program()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(run.get_args());
        command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut screen = Screen::start(&command, (80, 24));
        number_in(&began);
        screen.press("\x1a\x1a");
        screen.press("six\n");
        screen.wait_for("the command reads", |text| text.contains("had six"));
        assert_eq!(screen.end(), Some(0), "{within:?}");
    }
}

const NO_NAMESPACE: &str = "no process may have a namespace of processes here";

/// Whether a process may create a process namespace here.
fn can_unshare() -> bool {
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--pid", "--fork", "true"]);
    unshare.status().is_ok_and(|status| status.success())
}

#[test]
fn a_command_that_others_stop_keeps_the_lock_and_still_sees_the_end() {
    let nodes = nodes(3);
    let folder = tempfile::tempdir().unwrap();
    let began = folder.path().join("began");
    let script = format!("echo $$ > {}; exec sleep 1000", began.display());
    let args = ["run", "job", "--ttl", "6s", "--", "sh", "-c", &script];
    let mut job = start(lockmod(&nodes, &args));
    let command = number_in(&began);
    kill_process(Pid::from_raw(command).unwrap(), Signal::STOP).unwrap();
    wait_for_state(command, 'T');
    wait_until("it is renewed", || nodes.iter().all(is_renewed));
    crate::cli::signal(&job, Signal::TERM);
    assert_eq!(job.wait().unwrap().code(), Some(143));
}

/// Regression: batch systems and supervisors send these signals. They ended only `lockmod`, and the
/// command continued without a lease.
#[test]
fn signals_that_others_send_end_the_command_too() {
    let nodes = nodes(1);
    for signal in [
        Signal::USR1,
        Signal::USR2,
        Signal::ALARM,
        Signal::XCPU,
        Signal::XFSZ,
        Signal::VTALARM,
        Signal::PROF,
        Signal::IO,
        Signal::SYS,
        Signal::ABORT,
        Signal::TRAP,
        Signal::POWER,
        Signal::STKFLT,
    ] {
        let folder = tempfile::tempdir().unwrap();
        let began = folder.path().join("began");
        let script = format!("ulimit -c 0; echo $$ > {}; exec sleep 1000", began.display());
        let mut job = start(lockmod(&nodes, &["run", "job", "--", "sh", "-c", &script]));
        let command = number_in(&began);
        crate::cli::signal(&job, signal);
        assert_eq!(job.wait().unwrap().code(), Some(128 + signal.as_raw()));
        assert!(is_gone(command), "{signal:?}");
        assert_eq!(leases(&nodes, "job"), 0);
    }
}

/// Regression: the command continued without a lease, unnoticed.
#[test]
fn a_command_is_told_to_end_when_lockmod_is_killed() {
    let nodes = nodes(1);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (began, told) = (path("began"), path("told"));
    let script = format!(
        "trap 'echo 1 > {}; exit' TERM; echo $$ > {}; while :; do sleep 0.02; done",
        told.display(),
        began.display()
    );
    let mut job = start(lockmod(&nodes, &["run", "job", "--", "sh", "-c", &script]));
    let command = number_in(&began);
    crate::cli::signal(&job, Signal::KILL);
    job.wait().unwrap();
    assert_eq!(number_in(&told), 1, "TERM, and time to tidy up");
    wait_until("the command has ended", || is_gone(command));
}

/// Regression: it wrote into `/dev/null`, which replaced the closed descriptors.
#[test]
fn a_command_finds_closed_what_lockmod_was_started_without() {
    let nodes = nodes(1);
    let folder = tempfile::tempdir().unwrap();
    let found = folder.path().join("found");
    let look = format!(
        "exec 9> {}; for fd in 0 1 2; do [ -e /proc/$$/fd/$fd ] && echo $fd >&9; done; \
         echo end >&9",
        found.display()
    );
    for (closed, fd) in [("<&-", "0"), (">&-", "1"), ("2>&-", "2")] {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("\"$@\" {closed}"), "sh", env!("CARGO_BIN_EXE_lockmod")]);
        shell.args(["run", "job", "--nodes", &nodes[0].url(), "--", "sh", "-c", &look]);
        assert!(shell.status().unwrap().success(), "{closed}");
        let open = fs::read_to_string(&found).unwrap();
        assert!(
            open.ends_with("end\n") && !open.lines().any(|line| line == fd),
            "{closed}: {open}"
        );
    }
}

/// Regression: a missing command held the lock for as long as one that has run.
#[test]
fn a_command_that_cannot_be_started_releases_the_lock_at_once() {
    let nodes = nodes(1);
    let folder = tempfile::tempdir().unwrap();
    let run = |program: &str, code| {
        let args = ["run", "job", "--at-least", "1h", "--", program];
        let said = crate::cli::fails(&nodes, &args, code);
        assert!(said.contains(program) && said.lines().count() == 1, "{said}");
    };
    run("no-such-command", 127);
    run("/no/such/command", 127);
    let text = folder.path().join("text");
    fs::write(&text, "no program").unwrap();
    run(&text.display().to_string(), 126);
    run(&folder.path().display().to_string(), 126);
}

/// Regression: HUP ended the command in spite of `nohup`.
#[test]
fn signals_that_are_ignored_stay_ignored() {
    let nodes = nodes(1);
    let folder = tempfile::tempdir().unwrap();
    let (began, gate) = (folder.path().join("began"), folder.path().join("gate"));
    let (file, end) = (began.display(), gate.display());
    let script = format!("echo $$ > {file}; while [ ! -e {end} ]; do sleep 0.02; done");
    let mut nohup = Command::new("sh");
    let run = "trap '' HUP; exec \"$@\"";
    nohup.args(["-c", run, "sh", env!("CARGO_BIN_EXE_lockmod")]);
    nohup.args(["run", "job", "--nodes", &nodes[0].url(), "--", "sh", "-c", &script]);
    let mut job = start(nohup);
    let command = number_in(&began);
    crate::cli::signal(&job, Signal::HUP);
    kill_process(Pid::from_raw(command).unwrap(), Signal::HUP).unwrap();
    fs::write(gate, "").unwrap();
    assert_eq!(job.wait().unwrap().code(), Some(0));
}

/// Regression: as process 1 of a container, it left zombies behind while the command ran.
#[test]
fn the_orphans_of_the_command_are_reaped_by_process_1() {
    let nodes = nodes(1);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (orphan, began, gate) = (path("orphan"), path("began"), path("gate"));
    let inner = format!(
        "echo $$ > {}; while [ ! -e {} ]; do sleep 0.02; done",
        orphan.display(),
        gate.display()
    );
    let script = format!("(sh -c '{inner}' &); echo $$ > {}; exec sleep 100", began.display());
    let mut command = lockmod(&nodes, &["run", "job", "--", "sh", "-c", &script]);
    // It receives orphans as process 1 does.
    // SAFETY: between fork and exec this is one bare system call, without allocation.
    unsafe { command.pre_exec(|| set_child_subreaper(Pid::from_raw(1)).map_err(Into::into)) };
    let mut job = start(command);
    let (orphan, _) = (number_in(&orphan), number_in(&began));
    let lockmod = i32::try_from(job.id()).unwrap();
    wait_until("it is an orphan", || parent(orphan) == Some(lockmod));
    fs::write(gate, "").unwrap();
    let entry = format!("/proc/{orphan}");
    wait_until("it is reaped", || !Path::new(&entry).exists());
    crate::cli::signal(&job, Signal::TERM);
    assert_eq!(job.wait().unwrap().code(), Some(143));
}

#[test]
fn a_real_process_1_passes_the_exit_code_and_signals_on() {
    let nodes = nodes(1);
    let inside = |script: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]);
        unshare.arg(env!("CARGO_BIN_EXE_lockmod")).args(["run", "job", "--nodes"]);
        unshare.arg(nodes[0].url()).args(["--", "sh", "-c", script]);
        unshare
    };
    if !can_unshare() {
        // The test above stands for it.
        skip("a_real_process_1_passes_the_exit_code_and_signals_on", NO_NAMESPACE);
        return;
    }
    let output = inside("echo $PPID; exit 7").output().unwrap();
    let said = crate::cli::text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert_eq!(output.stdout, b"1\n");
    assert_eq!(leases(&nodes, "job"), 0);
}
