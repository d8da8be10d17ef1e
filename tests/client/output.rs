//! The command's results and errors: for people, for programs, and for outputs that cannot be
//! written.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::pipe::pipe;
use rustix::process::Signal;

use crate::cli::{NO_TOKEN, fails, lockmod, signal, start, succeeds, text};
use crate::common::{Server, wait_until};
use crate::faults::{certificates, encrypted_node};
use crate::{is_renewed, leases, nodes};

/// Runs the command with this standard output.
fn into(nodes: &[Server], args: &[&str], stdout: impl Into<Stdio>) -> (Option<i32>, String) {
    let Output { status, stderr, .. } =
        lockmod(nodes, args).stdout(stdout).stderr(Stdio::piped()).output().unwrap();
    (status.code(), text(&stderr))
}

/// A pipe without a reader.
fn closed_pipe() -> OwnedFd {
    pipe().unwrap().1
}

fn full_disk() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// Regression: `lockmod list | head -1` printed a panic.
#[test]
fn a_closed_pipe_ends_every_command_that_prints_quietly() {
    let nodes = nodes(3);
    let token = token_of(&succeeds(&nodes, &["acquire", "job", "--label", "me"]));
    for args in [
        &["status"][..],
        &["status", "--json"],
        &["list"],
        &["list", "--all", "--json"],
        &["info", "job"],
        &["fence", "job", "--json"],
        &["extend", "job", &token],
        &["release", "job", &token],
        &["exporter", "--listen", "127.0.0.1:0"],
        &["completions", "bash"],
        &["--help"],
        &["--version"],
    ] {
        assert_eq!(into(&nodes, args, closed_pipe()), (Some(128 + 13), String::new()), "{args:?}");
    }
}

#[test]
fn a_full_disk_is_an_error_of_every_command_that_prints() {
    let nodes = nodes(1);
    for args in [&["status"][..], &["list", "--json"], &["completions", "zsh"], &["--help"]] {
        let (code, said) = into(&nodes, args, full_disk());
        assert_eq!(code, Some(125), "{args:?}: {said}");
        let expected = "cannot write to standard output: No space left on device";
        assert!(said.contains(expected) && said.lines().count() == 1, "{args:?}: {said}");
    }
}

fn token_of(out: &str) -> String {
    let token = out.lines().find_map(|line| line.strip_prefix("token "));
    token.unwrap_or_else(|| panic!("no token in {out}")).to_owned()
}

/// Regression: the lock stayed held for its whole ttl by a token that was never printed.
#[test]
fn a_lock_is_released_if_nobody_can_be_told_that_it_is_held() {
    let nodes = nodes(3);
    for command in ["acquire", "lock"] {
        let (code, said) = into(&nodes, &[command, "job", "--ttl", "1h"], full_disk());
        assert_eq!(code, Some(125), "{command}: {said}");
        assert!(said.contains("No space left on device"), "{command}: {said}");
        assert_eq!(said.contains("so the lock was released"), command == "acquire", "{said}");
        wait_until("it is released", || leases(&nodes, "job") == 0);
        let (code, _) = into(&nodes, &[command, "job", "--ttl", "1h", "--json"], closed_pipe());
        assert_eq!(code, Some(128 + 13), "{command}");
        wait_until("it is released", || leases(&nodes, "job") == 0);
    }
}

/// `lockmod lock job | head -1` kept the lock until Ctrl-C, and `acquire --wait` waited to the end
/// for a lock that it then released.
#[test]
fn a_reader_that_goes_ends_what_is_waited_for_and_what_is_held() {
    let nodes = nodes(3);
    let holder = start(lockmod(&nodes, &["lock", "job", "--ttl", "1h"]));
    wait_until("it is held", || leases(&nodes, "job") == 3);
    let waits = [&["lock", "job", "--wait", "1h"][..], &["acquire", "job", "--wait", "1h"]];
    let waiting = waits.map(|args| start(lockmod(&nodes, args)));
    wait_until("both wait", || succeeds(&nodes, &["info", "job"]).contains("2 in line"));
    for mut child in waiting.into_iter().chain([holder]) {
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(128 + 13), String::new()));
    }
    wait_until("nothing is left", || leases(&nodes, "job") == 0);
    assert!(!succeeds(&nodes, &["info", "job"]).contains("in line"));
}

/// Regression: the standard library opens `/dev/null` in place of a closed output, so `acquire`
/// ended with 0, and the lock stayed held by a token that was lost.
#[test]
fn a_closed_output_is_an_error_of_every_command_that_prints() {
    let nodes = nodes(3);
    let token = token_of(&succeeds(&nodes, &["acquire", "taken"]));
    for args in [
        &["acquire", "job"][..],
        &["acquire", "job", "--json"],
        &["lock", "job"],
        &["info", "job"],
        &["fence", "job"],
        &["list"],
        &["status"],
        &["status", "--json"],
        &["extend", "taken", &token],
        &["release", "taken", &token],
        &["exporter", "--listen", "127.0.0.1:0"],
        &["completions", "bash"],
        &["--help"],
        &["--version"],
    ] {
        let shell = lockmod(&nodes, &[]);
        let lockmod = shell.get_program().to_owned();
        let mut closed = std::process::Command::new("sh");
        closed.args(["-c", "exec \"$0\" \"$@\" >&-"]).arg(lockmod).args(args);
        closed.envs(shell.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = closed.stdin(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{args:?}: {said}");
        let expected = "cannot write to standard output: Bad file descriptor";
        assert!(said.contains(expected) && said.lines().count() == 1, "{args:?}: {said}");
        assert_eq!(said.contains("so the lock was released"), args[0] == "acquire", "{said}");
        wait_until("it is released", || leases(&nodes, "job") == 0);
        // With the output sent to `/dev/null`, nothing is printed, as requested.
        if args[0] == "status" {
            assert_eq!(into(&nodes, args, Stdio::null()).0, Some(0), "{args:?}");
        }
    }
}

#[test]
fn errors_are_json_where_results_are() {
    let mut nodes = nodes(3);
    succeeds(&nodes, &["acquire", "job", "--label", "a \"b\""]);
    let said = fails(&nodes, &["acquire", "job", "--json"], 120);
    assert!(said.starts_with("{\"error\":\"contended\",\"exit_code\":120,\"message\":"), "{said}");
    assert_eq!(said.matches("\"vote\":\"held\",\"text\":\"held by a").count(), 3, "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let said = fails(&nodes, &["release", "job", NO_TOKEN, "--json"], 122);
    assert!(said.starts_with("{\"error\":\"lost\",\"exit_code\":122"), "{said}");
    for wrong in [&["list", "--json", "--nodes", "redis://a,redis://b"][..], &["info", "--json"]] {
        let said = fails(&nodes, wrong, 125);
        assert!(said.starts_with("{\"error\":\"usage\",\"exit_code\":125"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    // A problem with the environment has another word.
    let (code, said) = into(&nodes, &["list", "--json"], full_disk());
    assert!(code == Some(125) && said.starts_with("{\"error\":\"failed\""), "{said}");
    nodes[0].kill();
    let output = lockmod(&nodes, &["list", "--json"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success() && said.starts_with("{\"warning\":\"127.0.0.1:"), "{said}");
    nodes[1].kill();
    for args in [&["fence", "job", "--json"][..], &["info", "job", "--json"], &["status", "--json"]]
    {
        let said = fails(&nodes, args, 121);
        assert!(said.contains("\"error\":\"no_quorum\",\"exit_code\":121"), "{said}");
        assert_eq!(said.matches("\"vote\":\"unreachable\"").count(), 2, "{said}");
    }
}

/// Regression: nothing was printed, although the documents promise JSON.
#[test]
fn a_wait_that_a_signal_ends_is_an_error_in_json() {
    let nodes = nodes(1);
    succeeds(&nodes, &["acquire", "job"]);
    for args in [&["acquire", "job", "--wait", "1m", "--json"][..], &["lock", "job", "--json"]] {
        let child = start(lockmod(&nodes, args));
        // The process handles its signals before it asks any node.
        wait_until("it waits", || {
            let info = succeeds(&nodes, &["info", "job", "--json"]);
            info.contains("\"waiters\":1")
        });
        signal(&child, Signal::TERM);
        let output = child.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(128 + 15), "{args:?}: {said}");
        let expected =
            "{\"error\":\"interrupted\",\"exit_code\":143,\"message\":\"interrupted by SIGTERM\"";
        assert!(said.starts_with(expected), "{args:?}: {said}");
        assert!(said.lines().count() == 1 && output.stdout.is_empty(), "{args:?}: {said}");
    }
}

/// Regression: the runtime panicked, with a path of the build machine.
#[test]
fn too_few_files_are_an_error_and_no_panic() {
    let nodes = nodes(1);
    let mut is_enough = false;
    for limit in (4..=14).chain([20, 24]) {
        let name = format!("job-{limit}");
        for args in [&["run", &name, "--", "true"][..], &["acquire", &name], &["status"]] {
            let mut limited = Command::new("sh");
            limited.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &limit.to_string()]);
            limited.arg(env!("CARGO_BIN_EXE_lockmod")).args(args);
            let output = limited.env("LOCKMOD_NODES", nodes[0].url()).output().unwrap();
            let (code, said) = (output.status.code(), text(&output.stderr));
            assert!(!said.contains("panicked"), "{limit} {args:?}: {said}");
            let is_too_few = said.starts_with("lockmod: cannot start: Too many open files");
            assert_eq!(code == Some(125), is_too_few, "{limit} {args:?}: {code:?}: {said}");
            assert!(limit > 8 || is_too_few, "{limit} {args:?}: {said}");
            is_enough = code == Some(0);
        }
    }
    assert!(is_enough);
}

/// Regression: the error's message was the help text: many lines, for people.
#[test]
fn wrong_usage_under_json_is_what_is_wrong_and_nothing_else() {
    for (args, message) in [
        (&["--json"][..], "write --json behind one of lock, acquire,"),
        (&["--json", "list"], "write --json behind one of lock, acquire,"),
        (&["run", "job", "--json", "--", "true"], "'run' has no --json: only lock, acquire,"),
        (
            &["extend", "job", "--json"],
            "the following required arguments were not provided: <TOKEN>",
        ),
        (&["info", "job", "--json"], "no nodes: give --nodes redis://host:port,... or set LOCKMOD"),
        (&["info", "job", "--json", "--nope"], "unexpected argument '--nope' found"),
        (
            &["acquire", "job", "--json", "--ttl", "5"],
            "invalid value '5' for '--ttl <TTL>': it has no unit: write 5s",
        ),
        (&["help", "--json"], "unrecognized subcommand '--json'"),
    ] {
        let mut command = lockmod(&[], args);
        let output = command.env_remove("LOCKMOD_NODES").output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{args:?}: {said}");
        assert!(said.contains(&format!("\"message\":\"{message}")), "{args:?}: {said}");
        assert!(!said.contains("Usage") && !said.contains("\\u000a"), "{args:?}: {said}");
    }
}

/// Regression: a name that is not UTF-8 could not be told apart from another, nor passed to a
/// command.
#[test]
fn a_name_of_any_bytes_can_be_seen_and_acted_upon() {
    let nodes = nodes(3);
    let name = OsStr::from_bytes(b"a\xff");
    let run = |args: &[&str], after: &[&str]| {
        let output = lockmod(&nodes, args).arg(name).args(after).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let shell = ["--", "sh", "-c", "printf %s \"$LOCKMOD_NAME\" | od -An -tx1"];
    assert_eq!(run(&["run"], &shell), " 61 ff\n");
    let acquired = run(&["acquire", "--json"], &[]);
    let named = "{\"name\":\"a\u{fffd}\",\"name_hex\":\"61ff\",";
    assert!(acquired.starts_with(named), "{acquired}");
    for args in [&["list", "--json"][..], &["status", "--json"]] {
        let listed = succeeds(&nodes, args);
        assert!(listed.contains(named), "{args:?}: {listed}");
    }
    for args in [&["info", "--json"][..], &["fence", "--json"]] {
        let told = run(args, &[]);
        assert!(told.starts_with(named), "{args:?}: {told}");
    }
    assert!(succeeds(&nodes, &["list"]).starts_with("a\\xff: held, fence 2"));
    assert_eq!(run(&["release", "--force"], &[]), "deleted on 3 of 3 nodes\n");
    assert_eq!(succeeds(&nodes, &["list"]), "");
}

#[test]
fn a_name_that_is_empty_is_refused_by_every_command() {
    let nodes = nodes(1);
    for args in [
        &["run", "", "--", "true"][..],
        &["lock", ""],
        &["acquire", ""],
        &["release", "", NO_TOKEN],
        &["release", "--force", ""],
        &["extend", "", NO_TOKEN],
        &["fence", ""],
        &["info", ""],
    ] {
        let said = fails(&nodes, args, 125);
        assert!(said.contains("the name is empty: is a variable not set?"), "{args:?}: {said}");
    }
    // Regression: an empty command was looked up only once the lock was held, and not found.
    let said = fails(&nodes, &["run", "job", "--", "", "x"], 125);
    assert!(said.contains("the command is empty: is a variable not set?"), "{said}");
    assert_eq!(succeeds(&nodes, &["list", "--all"]), "", "it was never acquired");
}

/// Regression: the errors named methods of the library: `allow_even_nodes()`, `max_ttl()`.
#[test]
fn errors_name_the_flags_of_the_command() {
    let nodes = nodes(2);
    let said = fails(&nodes, &["list"], 125);
    assert!(said.contains("allow an even number with --even"), "{said}");
    succeeds(&nodes, &["list", "--even"]);
    let said = fails(&nodes, &["acquire", "job", "--even", "--timeout", "11s"], 125);
    assert!(said.contains("--timeout 11s does not fit into --ttl 30s"), "{said}");
    // There is no ttl that it would have to fit into.
    succeeds(&nodes, &["info", "job", "--even", "--timeout", "11s"]);
    let said = fails(&nodes, &["list", "--even", "--timeout", "0s"], 125);
    assert!(said.contains("--timeout"), "{said}");
    let said = fails(&nodes, &["list", "--nodes", "htp:x"], 125);
    assert!(said.contains("node 1 of --nodes has no usable URL, 'htp:x': it does"), "{said}");
    let mut command = lockmod(&[], &["list"]);
    command.env("LOCKMOD_NODES", "redis://:s3cret@h:99999");
    let said = text(&command.output().unwrap().stderr);
    assert!(said.contains("node 1 of LOCKMOD_NODES") && said.contains("'99999'"), "{said}");
    assert!(said.contains("redis://...@h:99999") && !said.contains("s3cret"), "{said}");
    let said = fails(&nodes, &["list", "--even", "--cert", "c.pem"], 125);
    assert!(said.contains("--key <FILE>"), "{said}");
    let encrypted = ["list", "--nodes", "rediss://127.0.0.1:1", "--cacert", "/no/such/file"];
    let said = fails(&nodes, &encrypted, 125);
    assert!(said.contains("TLS: cannot read cacert \"/no/such/file\""), "{said}");
}

/// Regression: the errors reported unexpected arguments `-5`, and digits found in strings.
#[test]
fn a_value_that_cannot_be_read_is_refused_with_its_flag_and_its_range() {
    let (negative, huge) = ("no length of time is negative", "99999999999999999999s");
    for (args, shape) in [
        (&["acquire", "job", "--ttl", "-5s"][..], negative),
        (&["acquire", "job", "--wait", "-1s"], negative),
        (&["acquire", "job", "--wait", huge], "at most 36525d"),
        (&["list", "--timeout", "-1ms"], negative),
        (&["top", "--every", "-1s"], negative),
        (&["acquire", "job", "--ttl", huge], "at most 366d"),
        (&["top", "--every", "0s"], "give at least 100ms"),
        (&["run", "job", "--at-least", "-1s", "--", "true"], negative),
        (&["status", "--limit", "-1"], "whole number from 1 to 1000000"),
        (&["status", "--limit", "0"], "whole number from 1 to 1000000"),
        (&["status", "--limit", "abc"], "whole number from 1 to 1000000"),
        (&["status", "--limit", huge], "whole number from 1 to 1000000"),
        (&["nodes", "--module", "m", "--count", "-3"], "whole number from 1 to 32"),
        (&["nodes", "--module", "m", "--count", "33"], "whole number from 1 to 32"),
        (&["exporter", "--listen", "localhost:29478"], "as 127.0.0.1:9477"),
    ] {
        let mut command = lockmod(&[], args);
        let output = command.env("LOCKMOD_NODES", "redis://127.0.0.1:1").output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{args:?}: {said}");
        let at = args.iter().rposition(|arg| arg.starts_with("--") && arg.len() > 2).unwrap();
        let is_named = said.contains(args[at]) && said.contains(args[at + 1]);
        assert!(is_named && said.contains(shape), "{args:?}: {said}");
    }
    // Regression: the error was about the command, or about a length of time that is negative.
    for args in [
        &["run", "job", "--wait", "--", "true"][..],
        &["run", "job", "--wait", "--ttl", "5s", "--", "true"],
        &["acquire", "job", "--wait", "--json"],
        &["lock", "job", "--wait"],
    ] {
        let said = fails(&[], args, 125);
        assert!(said.contains("a value is required for '--wait <WAIT>'"), "{args:?}: {said}");
    }
    let nodes = nodes(1);
    let said = fails(&nodes, &["run", "job", "true"], 125);
    assert!(said.contains("write the command behind --"), "{said}");
    // A list with blanks, as a person writes it.
    succeeds(&[], &["list", "--nodes", &format!(" {} ", nodes[0].url())]);
    let said = fails(&nodes, &["release", "job"], 125);
    assert!(said.contains("the token that `acquire` printed, or --force"), "{said}");
}

/// Regression: the command had its own limit of 24 hours.
#[test]
fn the_nodes_and_not_the_command_limit_the_ttl() {
    let nodes = nodes(3);
    let said = fails(&nodes, &["acquire", "job", "--ttl", "48h"], 123);
    // Regression: the message showed a number of milliseconds.
    assert!(said.contains("at most 24h there, and 2d was asked for"), "{said}");
    for node in &nodes {
        node.run("CONFIG SET lockmod.max-ttl 172800000").unwrap();
    }
    let out = succeeds(&nodes, &["acquire", "job", "--ttl", "48h"]);
    let token = token_of(&out);
    succeeds(&nodes, &["extend", "job", &token, "--ttl", "2d"]);
    fails(&nodes, &["extend", "job", &token, "--ttl", "49h"], 123);
    let said = fails(&nodes, &["acquire", "job", "--ttl", "367d"], 125);
    assert!(said.contains("give at most 366d"), "{said}");
}

#[test]
fn certificates_are_given_by_flags_or_by_the_environment() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_, files) = certificates(folder.path());
    let (_, [other_ca, _, _]) = certificates(elsewhere.path());
    let (_node, url) = encrypted_node(&files);
    let [ca, cert, key, other_ca] =
        [&files[0], &files[1], &files[2], &other_ca].map(|file| file.display().to_string());
    let acquire = ["acquire", "job", "--nodes", &url, "--wait", "1m"];
    let with = |more: &[&'static str], files: &[&str]| {
        let flags = more.iter().zip(files).flat_map(|(flag, file)| [*flag, *file]);
        lockmod(&[], &acquire.into_iter().chain(flags).collect::<Vec<_>>()).output().unwrap()
    };
    let all = ["--cacert", "--cert", "--key"];
    let output = with(&all, &[&ca, &cert, &key]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    // A refused handshake is an answer, so the command does not wait.
    for (flags, files) in [(&all[..1], vec![&*ca]), (&all[..], vec![&*other_ca, &*cert, &*key])] {
        let since = Instant::now();
        let output = with(flags, &files);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(123), "{said}");
        assert!(
            since.elapsed() < Duration::from_secs(30) && said.contains("certificate"),
            "{said}"
        );
    }
    let mut status = lockmod(&[], &["status", "--nodes", &url]);
    status.env("LOCKMOD_CACERT", &ca).env("LOCKMOD_CERT", &cert).env("LOCKMOD_KEY", &key);
    assert!(status.output().unwrap().status.success());
}

/// Regression: one error was "connection reset by peer", the other blamed a slow network.
#[test]
fn a_scheme_that_does_not_fit_the_port_is_told_with_the_one_that_does() {
    let folder = tempfile::tempdir().unwrap();
    let (_node, url) = encrypted_node(&certificates(folder.path()).1);
    let plain = url.replace("rediss:", "redis:");
    for args in [&["acquire", "job"][..], &["info", "job"], &["status"], &["list", "--json"]] {
        let output = lockmod(&[], args).args(["--nodes", &plain]).output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(121), "{args:?}: {said}");
        assert!(said.contains("; for TLS write rediss://"), "{args:?}: {said}");
    }
    let node = &nodes(1)[0];
    let encrypted = node.url().replace("redis:", "rediss:");
    for args in [&["acquire", "job"][..], &["info", "job"], &["status"], &["list", "--json"]] {
        let said = fails(&[], &[args, &["--nodes", &encrypted]].concat(), 121);
        assert!(said.contains("a port without TLS never answers rediss://"), "{args:?}: {said}");
    }
    // Regression: a wait ended without the hint.
    for (url, hint) in [(&encrypted, "never answers rediss://"), (&plain, "write rediss://")] {
        let said = fails(&[], &["acquire", "job", "--wait", "2s", "--nodes", url], 121);
        assert!(said.contains(hint), "{said}");
    }
    let said = fails(&[], &["info", "job", "--nodes", "redis://127.0.0.1:1"], 121);
    assert!(!said.contains("TLS"), "it has nothing to do with it: {said}");
}

/// Greets like a server in protected mode greets other machines, and closes.
fn protected() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // In one write: data that has not left when the connection is closed is lost.
            let _ = stream.write_all(b"-DENIED Redis is running in protected mode because ...\r\n");
        }
    });
    port
}

/// Regression: the error was "connection reset by peer; for TLS write rediss://", after a full
/// wait.
#[test]
fn a_server_in_protected_mode_is_told_with_what_to_set() {
    let port = protected();
    for url in [format!("redis://127.0.0.1:{port}"), format!("redis://u:p@127.0.0.1:{port}/3")] {
        for args in [
            &["run", "job", "--wait", "1m", "--", "true"][..],
            &["info", "job"],
            &["status"],
            &["list", "--json"],
        ] {
            let since = Instant::now();
            let output = lockmod(&[], args).env("LOCKMOD_NODES", &url).output().unwrap();
            let said = text(&output.stdout) + &text(&output.stderr);
            assert_eq!(output.status.code(), Some(123), "{args:?}: {said}");
            assert!(said.contains("requirepass") && !said.contains("rediss"), "{args:?}: {said}");
            assert!(since.elapsed() < Duration::from_secs(30), "{args:?}: it was waited out");
        }
    }
}

/// Regression: the error was "connection reset by peer; for TLS write rediss://".
#[test]
fn a_server_with_as_many_clients_as_it_may_have_says_so() {
    let server = Server::builder().config("maxclients", 5).start();
    let connect = || TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let _others: Vec<TcpStream> = (0..5).map(|_| connect()).collect();
    for args in [&["run", "job", "--wait", "0s", "--", "true"][..], &["fence", "job"]] {
        let said = fails(std::slice::from_ref(&server), args, 121);
        assert!(
            said.contains("max number of clients") && !said.contains("TLS"),
            "{args:?}: {said}"
        );
    }
}

/// Regression: a certificate from `openssl req -x509` was refused as
/// `Other(OtherError(CaUsedAsEndEntity))`.
#[test]
fn the_certificate_of_an_authority_is_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let pair = rcgen::KeyPair::generate().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    fs::write(&cert, params.self_signed(&pair).unwrap().pem()).unwrap();
    fs::write(&key, pair.serialize_pem()).unwrap();
    let (_node, url) = encrypted_node(&[cert.clone(), cert.clone(), key]);
    let cert = cert.display().to_string();
    let said = fails(&[], &["acquire", "job", "--nodes", &url, "--cacert", &cert], 123);
    assert!(said.contains("TLS: the node shows the certificate of an authority"), "{said}");
}

#[test]
fn a_lock_is_taken_from_its_holder_by_force() {
    let mut nodes = nodes(3);
    succeeds(&nodes, &["acquire", "job", "--label", "gone"]);
    assert_eq!(succeeds(&nodes, &["release", "--force", "job"]), "deleted on 3 of 3 nodes\n");
    assert_eq!(leases(&nodes, "job"), 0);
    // Regression: a bare 0 looked as if the fences began anew.
    let output = lockmod(&nodes, &["fence", "job"]).output().unwrap();
    let told = "no node knows lock 'job': it was never held, or was deleted; its next fence is \
                larger than 1\n";
    assert_eq!(text(&output.stdout), "0\n");
    assert!(text(&output.stderr).ends_with(told), "{output:?}");
    let said = fails(&nodes, &["release", "--force", "job"], 122);
    assert!(said.contains("nobody holds lock 'job'"), "{said}");
    fails(&nodes, &["release", "--force", "job", NO_TOKEN], 125);
    fails(&nodes, &["release", "job"], 125);
    succeeds(&nodes, &["acquire", "job"]);
    nodes[0].kill();
    let out = succeeds(&nodes, &["release", "--force", "job", "--json"]);
    assert_eq!(out, "{\"name\":\"job\",\"deleted_on\":2,\"nodes\":3}\n");
    nodes[1].kill();
    let said = fails(&nodes, &["release", "--force", "job"], 121);
    assert!(said.contains("connection refused"), "{said}");
    let said = fails(&nodes, &["release", "job", NO_TOKEN], 121);
    assert!(said.contains("stays held until its lease ends"), "nothing is known: {said}");
    // Regression: nothing said that the lock was held all the same, nor for how long.
    // The token may hold it at the others, which have five seconds to answer.
    nodes[2].run("LOCK.ACQUIRE other t 65000").unwrap();
    let said = fails(&nodes, &["release", "other", NO_TOKEN], 121);
    assert!(said.contains("the lock is still held, until its lease ends in 59."), "{said}");
}

#[test]
fn lock_holds_until_it_is_told_to_end_or_the_lock_is_lost() {
    let nodes = nodes(3);
    let mut holder = start(lockmod(&nodes, &["lock", "job", "--ttl", "6s"]));
    wait_until("it holds the lock", || leases(&nodes, "job") == 3);
    wait_until("it is renewed", || nodes.iter().all(is_renewed));
    signal(&holder, Signal::INT);
    assert_eq!(holder.wait().unwrap().code(), Some(0));
    assert_eq!(leases(&nodes, "job"), 0);
    let mut out = String::new();
    std::io::Read::read_to_string(&mut holder.stdout.unwrap(), &mut out).unwrap();
    assert_eq!(out, "holding 'job' with fence 1; Ctrl-C releases it\nreleased\n");

    let holder = start(lockmod(&nodes, &["lock", "job", "--ttl", "6s", "--json"]));
    wait_until("it holds the lock", || leases(&nodes, "job") == 3);
    succeeds(&nodes, &["release", "--force", "job"]);
    let output = holder.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "{\"name\":\"job\",\"fence\":2,\"shared\":false}\n");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(122), "{said}");
    assert!(said.starts_with("{\"error\":\"lost\"") && said.contains("removed"), "{said}");
}

/// Regression: the recipe for a job on one host had to append a `sleep` to the job.
#[test]
fn a_short_command_can_hold_the_lock_for_longer_than_it_runs() {
    let nodes = nodes(3);
    let (folder, began_at) = (tempfile::tempdir().unwrap(), Instant::now());
    let done = folder.path().join("done");
    let script = format!("echo > {}; exit 7", done.display());
    let args = ["run", "job", "--at-least", "2s", "--", "sh", "-c", &script];
    let mut job = start(lockmod(&nodes, &args));
    wait_until("the command has run", || done.exists());
    fails(&nodes, &["acquire", "job"], 120);
    assert_eq!(job.wait().unwrap().code(), Some(7));
    assert!(began_at.elapsed() >= Duration::from_secs(2), "{:?}", began_at.elapsed());
    assert_eq!(leases(&nodes, "job"), 0);

    // A signal ends the wait, and the exit code shows it. Regression: it was the command's own
    // code, as if all was well.
    fs::remove_file(&done).unwrap();
    let script = format!("trap '' TERM; {script}");
    let args = ["run", "job", "--at-least", "1h", "--", "sh", "-c", &script];
    let mut job = start(lockmod(&nodes, &args));
    wait_until("the command has run", || done.exists());
    wait_until("it ends", || {
        signal(&job, Signal::TERM);
        job.try_wait().unwrap().is_some()
    });
    let output = job.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(128 + 15), "{said}");
    let expected =
        "signal 15 came before --at-least was over; the command had ended with exit code 7";
    assert!(said.contains(expected), "{said}");
    assert_eq!(leases(&nodes, "job"), 0);
}

#[test]
fn help_shows_no_values_of_the_environment() {
    let mut help = lockmod(&[], &["run", "--help"]);
    help.env("LOCKMOD_NODES", "redis://:s3cret@h").env("LOCKMOD_KEY", "s3cret");
    let output = help.output().unwrap();
    assert!(output.status.success() && !text(&output.stdout).contains("s3cret"));
}

#[test]
fn completions_and_man_pages_have_every_command() {
    let help = succeeds(&[], &["--help"]);
    let commands = commands(&help);
    assert!(commands.len() > 12, "{help}");
    for (shell, mark) in [("bash", "complete -F"), ("zsh", "#compdef"), ("fish", "complete -c")] {
        let script = succeeds(&[], &["completions", shell]);
        assert!(script.contains(mark), "{shell}");
        commands.iter().for_each(|name| assert!(script.contains(name), "{shell}: {name}"));
    }
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    // The user wants to read a page, and forgets that `man` writes files.
    let said = fails(&[], &["man", &pages.display().to_string()], 125);
    assert!(said.contains("there is no folder") && !pages.exists(), "{said}");
    fs::create_dir(&pages).unwrap();
    succeeds(&[], &["man", &pages.display().to_string()]);
    assert!(fs::read_to_string(pages.join("lockmod.1")).unwrap().contains("Distributed locks"));
    for name in &commands {
        let page = fs::read_to_string(pages.join(format!("lockmod-{name}.1"))).unwrap();
        assert!(page.contains(".TH") && page.contains(".SH OPTIONS"), "{name}");
    }
    let page = fs::read_to_string(pages.join("lockmod-run.1")).unwrap();
    let usage = "SYNOPSIS\nlockmod run [OPTIONS] <NAME> \\-\\- <CMD>...\n.SH DESCRIPTION";
    assert!(page.contains(usage), "{page}");
}

/// The commands that `--help` lists.
pub(crate) fn commands(help: &str) -> Vec<String> {
    let list = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = list.lines().filter_map(|line| line.strip_prefix("  "));
    let names = names.filter(|line| !line.starts_with(' '));
    let names = names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned);
    names.filter(|name| name != "help").collect()
}

/// Regression: the process ended before the release of a granted minority was written. The lease
/// stood for its ttl, and kept everyone out when the other nodes came back.
#[test]
fn a_failed_attempt_leaves_nothing_on_the_node_that_granted_it() {
    let mut nodes = nodes(3);
    for node in &mut nodes[1..] {
        node.kill();
    }
    for command in ["acquire", "lock", "run"] {
        for wait in ["0s", "300ms"] {
            let mut args = vec![command, "job", "--ttl", "1h", "--wait", wait];
            args.extend(if command == "run" { &["--", "true"][..] } else { &[] });
            fails(&nodes, &args, 121);
            assert_eq!(leases(&nodes[..1], "job"), 0, "{args:?}");
        }
    }
}

/// Regression: what silent nodes were asked after the wait took two timeouts more.
#[test]
fn a_wait_over_hung_nodes_ends_within_a_timeout_of_its_end() {
    let nodes = nodes(3);
    nodes[1].pause();
    nodes[2].pause();
    for (wait, allowed) in [("0s", 1_000), ("500ms", 1_500)] {
        let start = Instant::now();
        let args = ["acquire", "job", "--ttl", "1h", "--wait", wait, "--timeout", "1s"];
        let said = fails(&nodes, &args, 121);
        let took = start.elapsed();
        assert!(took < Duration::from_millis(allowed + 900), "{wait}: {took:?}: {said}");
        assert!(said.contains("2 timed out"), "{said}");
        assert_eq!(leases(&nodes[..1], "job"), 0, "{wait}");
    }
    nodes[1].resume();
    nodes[2].resume();
    wait_until("what the hung nodes were told is done", || leases(&nodes, "job") == 0);
}

/// Nothing was said before the lock was lost, although its renewals had failed for long.
#[test]
fn whoever_holds_a_lock_is_told_that_it_cannot_be_renewed_and_that_it_is_again() {
    let nodes = nodes(3);
    for (args, end) in [
        (&["lock", "job", "--ttl", "12s"][..], "it is lost in "),
        (&["run", "job", "--ttl", "12s", "--", "cat"], "the command is ended in "),
    ] {
        let mut command = lockmod(&nodes, args);
        command.stdin(Stdio::piped());
        let mut child = start(command);
        let mut told = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        wait_until("it is held", || leases(&nodes, "job") == 3);
        nodes[1..].iter().for_each(Server::pause);
        let said = told.next().unwrap();
        assert!(said.starts_with("lockmod: lock 'job' cannot be renewed: 1 of 3 nodes"), "{said}");
        let silent = format!(
            "127.0.0.1:{}, 127.0.0.1:{}; unless it can, {end}",
            nodes[1].port(),
            nodes[2].port()
        );
        assert!(said.contains(&silent), "{said}");
        nodes[1..].iter().for_each(Server::resume);
        assert_eq!(told.next().unwrap(), "lockmod: lock 'job' is renewed again");
        signal(&child, Signal::TERM);
        child.wait().unwrap();
    }
}

/// Regression: the time was that to the end of the lease, and the command was ended long before.
#[test]
fn the_time_after_which_a_holder_is_said_to_end_is_that_after_which_it_does() {
    let nodes = nodes(3);
    for args in [&["lock", "job", "--ttl", "8s"][..], &["run", "job", "--ttl", "8s", "--", "cat"]] {
        let mut command = lockmod(&nodes, args);
        command.stdin(Stdio::piped());
        let mut child = start(command);
        // To wait for the child closes its input, which ends `cat`.
        let _stdin = child.stdin.take();
        let mut told = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        wait_until("it is held", || leases(&nodes, "job") == 3);
        nodes[1..].iter().for_each(Server::pause);
        let said = told.next().unwrap();
        let told_at = Instant::now();
        let (_, left) = said.rsplit_once(" in ").unwrap();
        let left = left.strip_suffix('s').and_then(|left| left.parse().ok()).expect(&said);
        let left = Duration::from_secs_f64(left);
        assert_eq!(child.wait().unwrap().code(), Some(122));
        let took = told_at.elapsed();
        // A tenth less may be said, and the release may wait for the silent nodes.
        let (least, most) =
            (left - Duration::from_millis(500), left + Duration::from_millis(1_900));
        assert!(least < took && took < most, "{took:?}: {said}");
        nodes[1..].iter().for_each(Server::resume);
        wait_until("nothing is left", || leases(&nodes, "job") == 0);
    }
}

/// Regression: nothing said until when the lock would be held.
#[test]
fn whoever_cannot_release_a_lock_is_told_for_how_long_it_may_stay_held() {
    let nodes = nodes(3);
    let told = "2 timed out: ";
    let end = "; the lock may stay held for up to 20s more";
    let mut holders = Vec::new();
    for args in [&["lock", "a", "--ttl", "20s"][..], &["run", "b", "--ttl", "20s", "--", "cat"]] {
        let mut command = lockmod(&nodes, args);
        command.stdin(Stdio::piped());
        holders.push(start(command));
        let name = args[1];
        wait_until("it is held", || leases(&nodes, name) == 3);
    }
    nodes[1..].iter().for_each(Server::pause);
    signal(&holders[0], Signal::TERM);
    drop(holders[1].stdin.take());
    for (holder, code) in holders.into_iter().zip([121, 0]) {
        let output = holder.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(
            said.contains("no quorum confirmed the release: ") && said.contains(told),
            "{said}"
        );
        assert!(said.contains(end), "{said}");
    }
    nodes[1..].iter().for_each(Server::resume);
}
