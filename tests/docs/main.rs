//! Every block of *.md and docs/*.md is tried: what a document shows is what happens.
//!
//! # How to write a block
//! The word after the fence determines what is done with the block:
//!
//! | fence | what is done |
//! |---|---|
//! | `console` | run as below |
//! | `conf` | a server is started with it, as redis.conf; `loadmodule` may name any folder |
//! | `rust` | nothing here: `src/lib.rs` must include the document, so that it is a doc test |
//! | `sh`, `bash`, `shell` | refused: write `console`, or `sh,ignore` if it cannot be run |
//! | anything with `,ignore` | nothing |
//! | `text`, `toml`, `python`, ... | nothing; but every fence has a word |
//!
//! # What happens in a `console` block
//! All blocks of one document are one bash session. Lines that start with `$ ` are run; lines that
//! start with `> `, or follow a backslash, belong to the same command. The lines up to the next
//! `$ ` are the expected output, errors included. In them `...` stands for anything within a line,
//! a line of `...` for any lines, and `  # with two blanks before it` starts a comment. The exit
//! code is shown by `$ echo $?`.
//!
//! - Ports 6379, 7000 to 7009, 7011 to 7013 and 9477 stand for others that are free, wherever
//!   these numbers are written, and `/var/lib/redis` for a folder of the session. In the output
//!   they are renamed back. `/usr/lib/redis/modules/liblockmod.so` and `target/release` are the
//!   current build. Everything else is unchanged: a server has the folder, the port and the
//!   settings of its line.
//! - `$ redis-server ...` returns when the server answers. It listens on loopback only, and ends
//!   with the session.
//! - `redis-cli` prints as on a terminal, `(integer) 1`, unless its output goes elsewhere
//!   (`$(...)`, a pipe).
//! - If a document names a port other than 9477, or uses `redis-cli` without a port (6379), a
//!   server with the module is started there. The documents in `AS_THEY_STAND` start everything
//!   themselves.
//! - `$ cargo`, `make`, `git`, `sudo`, `apt-get`, `docker`, `cd` are only shown, not run.
//! - The working folder is a temporary one, with `docs`, `examples` and `packaging` of the
//!   repository in it.

#[path = "../common/mod.rs"]
mod common;

mod blocks;
mod commands;
mod fields;
mod operations;
mod options;
mod session;
mod transcript;

use std::fs;
use std::path::{Path, PathBuf};

use blocks::{Block, blocks};
use common::Server;
use session::Session;

/// The documents whose procedures run unchanged, on a machine where nothing runs yet.
const AS_THEY_STAND: [&str; 1] = ["docs/operations.md"];

/// What is wrong, and where.
type Complaints = Vec<String>;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The documents, with their names: *.md and docs/*.md.
fn documents() -> Vec<(String, String)> {
    let folders = [root().to_owned(), root().join("docs")];
    let files = folders.iter().flat_map(fs::read_dir).flatten().flatten();
    let mut paths: Vec<PathBuf> = files.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.strip_prefix(root()).ok()?.to_str()?.to_owned();
        Some((name, fs::read_to_string(&path).ok()?))
    };
    paths.into_iter().filter_map(read).collect()
}

/// Runs all runnable blocks of a document.
fn try_document(name: &str, text: &str) -> Complaints {
    let mut complaints = Complaints::new();
    let mut session = None;
    for block in blocks(text) {
        if let Some(complaint) = block.is_mislabelled() {
            complaints.push(format!("{name}:{}: {complaint}", block.line));
        }
        if block.is_ignored {
            continue;
        }
        match block.language.as_str() {
            "console" => {
                let start = || match AS_THEY_STAND.contains(&name) {
                    true => Session::bare(),
                    false => Session::with_servers(),
                };
                let session = session.get_or_insert_with(start);
                let found = transcript::try_block(session, &block);
                complaints
                    .extend(found.into_iter().map(|(line, why)| format!("{name}:{line}: {why}")));
            }
            "conf" => complaints.extend(try_configuration(name, &block)),
            _ => {}
        }
    }
    complaints
}

fn try_configuration(name: &str, block: &Block) -> Option<String> {
    let error = Server::builder().config_text(&block.text).try_start().err()?;
    Some(format!("{name}:{}: {error}", block.line))
}

#[track_caller]
fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn documents_do_what_they_show() {
    let complaints: Vec<String> =
        documents().iter().flat_map(|(name, text)| try_document(name, text)).collect();
    assert_none(&complaints);
}

#[test]
fn rust_in_documents_is_a_doc_test() {
    let library = fs::read_to_string(root().join("src/lib.rs")).expect("the library's front page");
    let complaints: Vec<String> = documents()
        .iter()
        .filter(|(_, text)| blocks(text).iter().any(|b| b.language == "rust" && !b.is_ignored))
        .filter(|(name, _)| !library.contains(&format!("include_str!(\"../{name}\")")))
        .map(|(name, _)| format!("{name}: has Rust blocks; src/lib.rs must include it"))
        .collect();
    assert_none(&complaints);
}

#[test]
fn links_within_the_repository_lead_somewhere() {
    let mut complaints = Complaints::new();
    for (name, text) in documents() {
        let folder = root().join(&name);
        let folder = folder.parent().expect("a document lies in a folder");
        for (line, target) in blocks::links(&text) {
            if !folder.join(&target).exists() {
                complaints.push(format!("{name}:{line}: there is no {target}"));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn what_the_comparison_says_has_a_source_and_every_source_is_used() {
    let text = fs::read_to_string(root().join("docs/comparison.md")).expect("the document");
    let (said, sources) = text.split_once("\n## Sources\n").expect("its sources");
    let listed = sources.lines().filter(|line| line.contains("](https://")).count();
    assert!(listed >= 17, "{listed} sources with an address");
    for number in 1..=listed {
        assert!(sources.contains(&format!("\n{number}. ")), "there is no source {number}");
        assert!(said.contains(&format!("[{number}]")), "source {number} is not used");
    }
    assert!(!said.contains(&format!("[{}]", listed + 1)), "a source is missing");
}

#[test]
fn example_configuration_starts_a_server() {
    if let Ok(text) = fs::read_to_string(root().join("redis.conf.example")) {
        Server::builder().config_text(&text).start();
    }
}

// ---- the runner itself, on bare servers ----

/// A document that starts its own bare server, and then runs this.
fn try_console(text: &str) -> Complaints {
    let text = format!("```console\n$ redis-server --save ''\n```\n\n```console\n{text}\n```\n");
    try_document("sample.md", &text)
}

#[test]
fn right_transcript_passes() {
    assert_none(&try_console(
        "$ redis-cli SET key value      # a comment\nOK\n\
         $ redis-cli INCR counter\n(integer) 1       # counted\n\n\
         $ redis-cli GET absent\n(nil)\n\
         $ n=$(redis-cli INCR counter)  # plain where it is captured\n$ echo \"n is $n\"\nn is 2\n\
         $ redis-cli LRANGE key 0 1\n(error) WRONGTYPE ...\n\
         $ redis-cli INFO server | tr -d '\\r'\n# Server\nredis_version:...\n...\n\
         $ cat <<END\n> one\n> END\none\n\
         $ echo a \\\n    b\na b\n\
         $ cargo build --release\nCompiling many things\n\
         $ false\n$ echo $?\n1",
    ));
}

#[test]
fn wrong_transcript_is_caught_with_its_line() {
    let wrong = |text: &str| try_console(text);
    let one = wrong("$ redis-cli INCR counter\n(integer) 2");
    assert!(one.len() == 1 && one[0].starts_with("sample.md:6: "), "{one:?}");
    assert!(one[0].contains("(integer) 1") && one[0].contains("(integer) 2"), "{one:?}");
    // Every wrong answer is reported, not only the first.
    assert_eq!(wrong("$ echo a\nb\n$ echo c\nc\n$ echo d\ne").len(), 2);
    // Output that the document does not show, and shown output that is missing.
    assert_eq!(wrong("$ echo a").len(), 1);
    assert_eq!(wrong("$ true\na").len(), 1);
    assert_eq!(wrong("$ echo a\na\nb").len(), 1);
    assert_eq!(wrong("$ echo a; echo b\na").len(), 1);
    assert_eq!(wrong("$ no-such-command").len(), 1);
    assert_eq!(wrong("output first\n$ true").len(), 1);
    // A shell that ends itself is reported as well.
    assert_eq!(wrong("$ exit 3").len(), 1);
}

#[test]
fn ports_of_documents_stand_for_servers_of_their_own() {
    assert_none(&try_document(
        "sample.md",
        "```console\n$ redis-server --port 7001 &\n$ redis-server --port 7002 --hz 17\n\
         $ redis-cli -p 7001 SET key one\nOK\n$ redis-cli -p 7002 GET key\n(nil)\n\
         $ redis-cli -u redis://127.0.0.1:7001 GET key\n\"one\"\n\
         $ redis-cli -p 7002 CONFIG GET hz\n1) \"hz\"\n2) \"17\"\n\
         $ for port in 7001 7002; do redis-cli -p $port CONFIG GET port | tail -n 1; done\n\
         7001\n7002\n```\n",
    ));
    let refused = "```console\n$ redis-server --no-such-option 1\n```\n";
    assert_eq!(try_document("sample.md", refused).len(), 1);
}

#[test]
fn stopped_server_starts_again_where_its_line_says() {
    let text = |again: &str| {
        format!(
            "```console\n$ mkdir -p /var/lib/redis/7001\n\
             $ redis-server --port 7001 --dir /var/lib/redis/7001 --daemonize yes\n\
             $ redis-cli -p 7001 SET key one\nOK\n$ redis-cli -p 7001 SHUTDOWN SAVE\n\
             $ ls /var/lib/redis/7001/dump.rdb\n/var/lib/redis/7001/dump.rdb\n\
             $ redis-server --port 7001 {again}\n$ redis-cli -p 7001 GET key\n\"one\"\n```\n"
        )
    };
    assert_none(&try_document("sample.md", &text("--dir /var/lib/redis/7001")));
    // A line that omits the folder starts an empty server, as on a reader's machine.
    let forgotten = try_document("sample.md", &text(""));
    assert!(forgotten.len() == 1 && forgotten[0].contains("(nil)"), "{forgotten:?}");
}

#[test]
fn servers_are_given_only_to_documents_that_do_not_start_their_own() {
    let text = "```console\n$ redis-cli -p 7001 LOCK.FENCE orders\n(integer) 0\n```\n";
    assert_none(&try_document("sample.md", text));
    let refused = try_document(AS_THEY_STAND[0], text);
    assert!(refused.len() == 1 && refused[0].contains("Connection refused"), "{refused:?}");
}

#[test]
fn mislabelled_blocks_are_caught() {
    let count = |text: &str| try_document("sample.md", text).len();
    assert_eq!(count("```\nno word\n```\n"), 1);
    assert_eq!(count("```sh\nrm -rf target\n```\n"), 1);
    assert_eq!(count("```sh,ignore\nrm -rf target\n```\n"), 0);
    assert_eq!(count("```sh ignore\nrm -rf target\n```\n"), 0);
    assert_eq!(count("```console,ignore\n$ exit 1\n```\n"), 0);
    assert_eq!(count("```toml\n[a]\n```\n"), 0);
    assert_eq!(count("```text\nnever closed\n"), 1);
    assert_eq!(count("1. In a list:\n   ```console\n   $ echo a\n   b\n   ```\n"), 1);
}
