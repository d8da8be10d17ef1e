//! The rules, each with samples of what it must find and of what it must let pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::LazyLock;

use lockmod::wire::code;

use super::circles::circles;
use super::lexer::{Line, Source};

/// One complaint.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) reason: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.reason)
    }
}

/// One rule.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) check: fn(&[Source]) -> Vec<Finding>,
    /// Path, text, and the line of the only complaint.
    pub(crate) bad: &'static [(&'static str, &'static str, usize)],
    pub(crate) good: &'static [(&'static str, &'static str)],
}

const WIDE: &str = concat!(
    "// 0123456789012345678901234567890123456789012345678901",
    "23456789012345678901234567890123456789012345678901234567890123456789\n"
);

pub(crate) const ALL: &[Rule] = &[
    Rule {
        name: "head",
        check: head,
        bad: &[("src/a.rs", "// What it is for.\n", 1), ("tests/a.rs", "\n//! Late.\n", 1)],
        good: &[("src/a.rs", "//! What it is for.\n"), ("Makefile", "all:\n")],
    },
    Rule {
        name: "width",
        check: width,
        bad: &[("src/a.rs", WIDE, 1), ("packages/a.d.ts", WIDE, 1), ("examples/a.py", WIDE, 1)],
        good: &[(
            "src/a.rs",
            concat!(
                "// <https://example.org/012345678901234567890123456789012",
                "34567890123456789012345678901234567890123456789012345678901234567890123456789>\n"
            ),
        )],
    },
    Rule {
        name: "length",
        check: length,
        bad: &[("src/a.rs", LONG, 601)],
        good: &[("tests/a.rs", LONG)],
    },
    Rule {
        name: "proof",
        check: proof,
        bad: &[
            ("src/a.rs", "fn f() {\n    x.unwrap();\n}", 2),
            ("src/a.rs", "x\n    .expect(\"y\")", 2),
            ("src/a.rs", "panic!(\"no\")", 1),
            ("src/a.rs", "// PROOF: of another line.\n\nx.unwrap();", 3),
            ("src/a.rs", "x.unwrap();\n#[cfg(test)]\nmod tests {\n y.unwrap();\n}", 1),
        ],
        good: &[
            ("src/a.rs", "x.unwrap_or(0); // never unwrap()"),
            ("src/a.rs", "// PROOF: the list\n// is not empty.\nlet y =\n    x.first().unwrap();"),
            ("src/a.rs", "x.unwrap(); // PROOF: 1 is not 0"),
            ("src/a.rs", "//! ```\n//! x.unwrap();\n//! ```"),
            ("tests/a.rs", "x.unwrap();"),
        ],
    },
    Rule {
        name: "unfinished",
        check: unfinished,
        bad: &[
            ("src/a.rs", concat!("// TO", "DO: more\n"), 1),
            ("docs/a.md", concat!("FIX", "ME"), 1),
            ("tests/a.rs", "let a = 1;\ntodo!()", 2),
            ("src/a.rs", "dbg!(x);", 1),
        ],
        good: &[("src/a.rs", "// TODOS are a list. \\xXXXX")],
    },
    Rule {
        name: "unsafe",
        check: unsafe_code,
        bad: &[
            ("src/module/events.rs", "// SAFETY: no\nunsafe { f() }", 2),
            ("src/module/ffi.rs", "let x = unsafe { f() };", 1),
            ("src/module/ffi/reply.rs", "unsafe impl Send for X {}", 1),
            ("src/module/ffi.rs", "// SAFETY: a\nf();\nlet x = unsafe { f() };", 3),
        ],
        good: &[
            (
                "src/module/ffi.rs",
                "// SAFETY: the pointer\n// is ours.\nlet x =\n    unsafe { f() };",
            ),
            ("src/module/alloc.rs", "// SAFETY: forwards.\n#[inline]\nunsafe impl A for B {}"),
            ("src/module/ffi_key.rs", "unsafe extern \"C\" fn f(x: *const u8) {}"),
            ("src/lib.rs", "#![deny(unsafe_code)] // unsafe"),
        ],
    },
    Rule {
        name: "layers",
        check: layers,
        bad: &[
            ("src/engine/a.rs", "//! x\nuse crate::wire::Command;", 2),
            ("src/wire/a.rs", "use crate::module::X;", 1),
            ("src/wire/a.rs", "use url::Url;", 1),
            ("src/wire/a.rs", "use hashbrown::HashMap;", 1),
            ("src/wire/a.rs", "tokio_rustls::client()", 1),
            ("src/module/a.rs", "fn f() -> crate::client::Locker {", 1),
            ("src/module/a.rs", "use crate::{engine::Fence, client::Locker};", 1),
            ("src/client/a.rs", "use crate::module::X;", 1),
            ("src/client/mod.rs", "use super::cli;", 1),
            ("src/cli/a.rs", "use crate::module::X;", 1),
        ],
        good: &[
            ("src/engine/a.rs", "use crate::engine::Fence;\nuse super::time::Millis;"),
            ("src/wire/a.rs", "use crate::engine::Fence; // not crate::module"),
            ("src/client/a.rs", "use url::Url;\nuse crate::wire::Command;\nself.module::x"),
            ("src/cli/a.rs", "use crate::client::Locker;\nuse lockmod::wire::Command;"),
        ],
    },
    Rule {
        name: "twins",
        check: twins,
        bad: &[("src/engine/node/line.rs", "struct Bell {\n}\npub(super) enum Bell {", 3)],
        good: &[
            ("src/a.rs", "pub struct Guard;\nstruct Guard;\nenum One {}\n    type One = u8;"),
            ("tests/a.rs", "struct Bell;\nstruct Bell;"),
        ],
    },
    Rule {
        name: "circles",
        check: circles,
        bad: &[("src/client/a.rs", "//! x\nuse super::a::A;", 2)],
        good: &[("src/client/a.rs", "use super::b::B;"), ("src/client/mod.rs", "use super::a;")],
    },
    Rule {
        name: "pure",
        check: pure,
        bad: &[
            ("src/engine/a.rs", "let now = std::time::Instant::now();", 1),
            ("src/engine/a.rs", "use std::net::TcpStream;", 1),
            ("src/engine/a.rs", "use std::{fmt, fs};", 1),
            ("src/engine/a.rs", "use std::collections::HashMap;", 1),
            ("src/engine/a.rs", "rand::random()", 1),
            ("src/engine/a.rs", "itoa::Buffer::new()", 1),
        ],
        good: &[
            ("src/engine/a.rs", "use std::fmt;\nuse std::time::Duration;"),
            ("src/engine/a.rs", "use hashbrown::HashTable;"),
            ("src/codec.rs", "use bincode::Encode;"),
            ("src/engine/a.rs", "// PROOF: never iterated.\nuse std::collections::HashMap;"),
            ("src/client/a.rs", "use std::net::TcpStream;"),
        ],
    },
    Rule {
        name: "words",
        check: words,
        bad: &[
            ("src/a.rs", "/// Starts the watchdog.", 1),
            ("docs/a.md", "The cooldown of it.", 1),
            ("src/a.rs", "let rollback_all = 1;", 1),
            ("README.md", "Unlock it.", 1),
        ],
        good: &[
            ("src/a.rs", "use std::sync::Mutex; // a Mutex"),
            ("README.md", "Renewal is known as a \"watchdog\" elsewhere."),
            ("docs/design.md", "not a mutex"),
            ("src/a.rs", "let x = RedisModule_ThreadSafeContextUnlock;"),
        ],
    },
    Rule {
        name: "codes",
        check: codes,
        bad: &[
            ("src/a.rs", "let a = \"BADTTL\";\nlet b = \"BADTTL\";", 2),
            ("src/a.rs", "x.starts_with(\"BUSY \") || y == \"BUSY\"", 1),
        ],
        good: &[
            ("src/a.rs", "const A: &str = \"BADTTL\"; // \"BADTTL\""),
            ("src/a.rs", "log!(\"QUARANTINE: {reason}\"); let a = \"QUARANTINE\";"),
            ("tests/a.rs", "assert!(a == \"BADTTL\" && b == \"BADTTL\");"),
        ],
    },
    Rule {
        name: "paths",
        check: paths,
        bad: &[
            ("README.md", concat!("see /wo", "rk/x"), 1),
            ("Makefile", concat!("cd /tm", "p/wt-a"), 1),
            ("src/a.rs", concat!("// /ro", "ot/.cargo"), 1),
            ("Cargo.lock", "source = \"registry+https://mirror.example/index\"", 1),
        ],
        good: &[
            ("README.md", "a network/protocol, /tmp/lockmod"),
            ("Cargo.lock", "source = \"registry+https://github.com/rust-lang/crates.io-index\""),
        ],
    },
    Rule {
        name: "makefile",
        check: makefile,
        bad: &[
            ("Makefile", ".PHONY: a b\na: ## A\n\tx\nb:\n\tx", 1),
            ("Makefile", ".PHONY: a\na: ## A\n\tx\nb: a ## B\n\tx", 4),
            ("Makefile", ".PHONY: a b\na: ## A\n\tx", 1),
        ],
        good: &[("Makefile", "M := x\n.PHONY: a b\na: ## A\n\tx\nb: a ## B\n\tx")],
    },
    Rule {
        name: "reachable",
        check: reachable,
        bad: &[("src/lost.rs", "//! Lost.", 1), ("src/a/b.rs", "//! Lost.", 1)],
        good: &[("src/lib.rs", "//! x"), ("src/bin/lockmod.rs", "//! x")],
    },
];

/// 601 lines.
const LONG: &str = {
    const BYTES: [u8; 601] = [b'\n'; 601];
    match std::str::from_utf8(&BYTES) {
        Ok(text) => text,
        Err(_) => unreachable!(),
    }
};

const LINES_MAX: usize = 600;
const COLUMNS_MAX: usize = 100;

/// Asks every line of the chosen files; `ask` says what is wrong with it.
fn each_line(
    sources: &[Source],
    choose: impl Fn(&Source) -> bool,
    ask: impl Fn(&Source, usize) -> Option<String>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| choose(source)) {
        for i in 0..source.lines.len() {
            if let Some(reason) = ask(source, i) {
                findings.push(Finding { path: source.path.clone(), line: i + 1, reason });
            }
        }
    }
    findings
}

/// Whether this word is there as a whole, not as a part of a longer name.
fn has_word(text: &str, word: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(is_name) && !text[at + word.len()..].starts_with(is_name)
    })
}

fn head(sources: &[Source]) -> Vec<Finding> {
    each_line(sources, Source::is_rust, |source, i| {
        let is_bad = i == 0 && !source.lines[0].text.starts_with("//!");
        is_bad.then(|| "a file opens with `//!`: what it is for, what it must never do".into())
    })
}

/// Rust, and the scripts of the packages and the examples; the packages' own tests are not that
/// narrow yet.
fn has_width(source: &Source) -> bool {
    const FOLDERS: [&str; 3] = ["examples/", "packages/", "tests/languages/"];
    const TESTS: [&str; 2] = ["packages/node/test/", "packages/python/tests/"];
    const ENDS: [&str; 6] = [".py", ".pyi", ".js", ".mjs", ".ts", ".mts"];
    let is_in = |folders: &[&str]| folders.iter().any(|folder| source.is_in(folder));
    let is_script = ENDS.iter().any(|end| source.path.ends_with(end));
    source.is_rust() || (is_script && is_in(&FOLDERS) && !is_in(&TESTS))
}

fn width(sources: &[Source]) -> Vec<Finding> {
    each_line(sources, has_width, |source, i| {
        let text = &source.lines[i].text;
        let is_whole = text.contains("://") || text.trim_start().starts_with("//! |");
        let is_bad = text.chars().count() > COLUMNS_MAX && !is_whole;
        is_bad.then(|| format!("wider than {COLUMNS_MAX} columns"))
    })
}

fn length(sources: &[Source]) -> Vec<Finding> {
    each_line(
        sources,
        |s| s.is_rust() && s.is_in("src/"),
        |source, i| {
            let is_bad = i == LINES_MAX && !source.lines[i].is_test;
            is_bad.then(|| format!("more than {LINES_MAX} lines before the unit tests: two ideas?"))
        },
    )
}

fn proof(sources: &[Source]) -> Vec<Finding> {
    const CALLS: [&str; 5] =
        [".unwrap()", ".expect(", "panic!", "unreachable!", "unwrap_unchecked"];
    each_line(
        sources,
        |s| s.is_rust() && s.is_in("src/"),
        |source, i| {
            let line = &source.lines[i];
            let call = CALLS.iter().find(|call| line.code.contains(*call))?;
            if line.is_test || is_argued(source, i, "PROOF:") {
                return None;
            }
            Some(format!("`{call}` without `// PROOF:` that says why it cannot happen"))
        },
    )
}

/// Whether a comment with `mark` stands on the line, or directly above the statement it is in.
fn is_argued(source: &Source, line: usize, mark: &str) -> bool {
    let has_mark = |line: &Line| line.comment.contains(mark);
    if has_mark(&source.lines[line]) {
        return true;
    }
    for above in source.lines[..line].iter().rev() {
        let code = above.code.trim();
        if has_mark(above) {
            return code.is_empty();
        }
        let is_comment = code.is_empty() && !above.comment.trim().is_empty();
        let is_attribute = code.starts_with("#[");
        // Blank lines and ends of statements are where a statement begins.
        let is_same_statement = !code.is_empty() && !code.ends_with([';', '{', '}']);
        if !(is_comment || is_attribute || is_same_statement) {
            return false;
        }
    }
    false
}

fn unfinished(sources: &[Source]) -> Vec<Finding> {
    const MARKS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    const MACROS: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];
    let is_prose_or_code =
        |s: &Source| s.is_rust() || s.path.ends_with(".md") || s.path == "Makefile";
    each_line(sources, is_prose_or_code, |source, i| {
        let line = &source.lines[i];
        let mark = MARKS.iter().find(|mark| has_word(&line.text, mark));
        let call = MACROS.iter().find(|call| source.is_rust() && line.code.contains(*call));
        mark.or(call).map(|what| format!("`{what}`: finish it, or file it elsewhere"))
    })
}

fn unsafe_code(sources: &[Source]) -> Vec<Finding> {
    each_line(
        sources,
        |s| s.is_rust() && s.is_in("src/"),
        |source, i| {
            let code = &source.lines[i].code;
            if !has_word(code, "unsafe") {
                return None;
            }
            if !source.path.starts_with("src/module/ffi") && source.path != "src/module/alloc.rs" {
                return Some("`unsafe` outside src/module/ffi* and src/module/alloc.rs".into());
            }
            // What is declared unsafe asks for a proof; a block or an implementation gives one.
            let is_claim = code.contains("unsafe {") || code.contains("unsafe impl");
            let is_bad = is_claim && !is_argued(source, i, "SAFETY:");
            is_bad
                .then(|| "no `// SAFETY:` above it: who owns it, until when, which thread?".into())
        },
    )
}

/// Our layers that a layer must not name, and whether it may name crates.
const LAYERS: [(&str, &[&str], bool); 6] = [
    ("src/engine/", &["codec", "wire", "module", "client", "cli"], false),
    ("src/codec", &["wire", "module", "client", "cli"], true),
    ("src/wire/", &["module", "client", "cli"], false),
    ("src/module/", &["client", "cli"], true),
    ("src/client/", &["module", "cli"], true),
    ("src/cli/", &["module"], true),
];

/// The crates that a layer may use even if it may use no others.
const LAYER_CRATES: [(&str, &str); 2] = [("src/engine/", "hashbrown"), ("src/wire/", "itoa")];

/// The first crate that this line names and `folder` must not use. Crates are the dependencies in
/// Cargo.toml.
fn forbidden_crate(folder: &str, code: &str) -> Option<&'static str> {
    static CRATES: LazyLock<Vec<String>> = LazyLock::new(|| {
        let lines = include_str!("../../Cargo.toml").lines();
        let headings = ["[dependencies]", "[dev-dependencies]"];
        let mut is_listed = false;
        let listed = lines.filter(|line| {
            let is_heading = line.starts_with('[');
            is_listed = if is_heading { headings.contains(line) } else { is_listed };
            is_listed && !is_heading && !line.starts_with('#')
        });
        let names = listed.filter_map(|line| line.split_once(" = "));
        names.map(|(name, _)| name.replace('-', "_")).filter(|name| name != "lockmod").collect()
    });
    let may_use = |name: &str| LAYER_CRATES.contains(&(folder, name));
    let used = |name: &&String| names_crate(code, name) && !may_use(name);
    CRATES.iter().find(used).map(String::as_str)
}

fn layers(sources: &[Source]) -> Vec<Finding> {
    each_line(sources, Source::is_rust, |source, i| {
        let line = &source.lines[i];
        let (folder, forbidden, may_use_crates) =
            LAYERS.iter().find(|(folder, ..)| source.is_in(folder))?;
        if line.is_test {
            return None;
        }
        if let Some(layer) = forbidden.iter().find(|layer| names_layer(source, &line.code, layer)) {
            return Some(format!("{folder} must not know of {layer}: see docs/design.md"));
        }
        // The engine's crates are the affair of `pure`.
        let is_engine = *folder == "src/engine/";
        let used = forbidden_crate(folder, &line.code)?;
        (!may_use_crates && !is_engine).then(|| format!("{folder} must not use {used}"))
    })
}

/// Which layers use which others, by the names of their folders.
pub(crate) fn uses(sources: &[Source]) -> BTreeSet<(String, String)> {
    let name = |folder: &str| folder["src/".len()..].trim_end_matches('/').to_owned();
    let mut found = BTreeSet::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        let Some((folder, ..)) = LAYERS.iter().find(|(folder, ..)| source.is_in(folder)) else {
            continue;
        };
        let from = name(folder);
        for to in LAYERS.map(|(folder, ..)| name(folder)) {
            let uses = |line: &Line| !line.is_test && names_layer(source, &line.code, &to);
            if to != from && source.lines.iter().any(uses) {
                found.insert((from.clone(), to));
            }
        }
    }
    found
}

fn names_layer(source: &Source, code: &str, layer: &str) -> bool {
    // `super::` leaves the layer from its topmost file only.
    let is_top = source.path.ends_with("/mod.rs") && source.path.matches('/').count() == 2;
    let mut roots = vec!["crate::", "lockmod::"];
    if is_top {
        roots.push("super::");
    }
    roots.iter().any(|root| {
        let direct = code.contains(&format!("{root}{layer}"))
            && has_word(&code[code.find(*root).unwrap_or(0)..], layer);
        let grouped = code.contains(&format!("{root}{{")) && has_word(code, layer);
        direct || grouped
    })
}

fn names_crate(code: &str, name: &str) -> bool {
    let path = format!("{name}::");
    code.match_indices(&path).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '.')
    })
}

fn pure(sources: &[Source]) -> Vec<Finding> {
    const MODULES: [&str; 6] = ["env", "fs", "io", "net", "process", "thread"];
    const NAMES: [&str; 6] =
        ["SystemTime", "Instant::now", "HashMap", "HashSet", "println!", "std::time::Instant"];
    each_line(
        sources,
        |s| s.is_rust() && s.is_in("src/engine/"),
        |source, i| {
            let line = &source.lines[i];
            if line.is_test || is_argued(source, i, "PROOF:") {
                return None;
            }
            let code = &line.code;
            let module = MODULES.iter().find(|name| {
                let grouped = code.contains("std::{") && has_word(code, name);
                has_word(code, &format!("std::{name}")) || grouped
            });
            let name = NAMES.iter().find(|name| code.contains(*name));
            let krate = forbidden_crate("src/engine/", code);
            let what = module.or(name).copied().or(krate)?;
            Some(format!("`{what}` in the engine: it has no clock, I/O, randomness or crates"))
        },
    )
}

/// Words that have a better one here, from the vocabulary of docs/design.md.
const WORDS: [(&str, &str); 7] = [
    ("watchdog", "renewal"),
    ("mutex", "lock"),
    ("rollback", "abandon"),
    ("cooldown", "quarantine"),
    ("unlock", "release"),
    ("lock timeout", "ttl"),
    ("resource id", "lock"),
];

fn words(sources: &[Source]) -> Vec<Finding> {
    let is_ours = |s: &Source| {
        let is_text = s.is_in("docs/") || s.path == "README.md" || s.path == "redis.conf.example";
        // The vocabulary itself, in a table, says what each word is not.
        (is_text || (s.is_in("src/") && s.is_rust())) && s.path != "docs/design.md"
    };
    each_line(sources, is_ours, |source, i| {
        let text = &source.lines[i].text;
        WORDS.iter().find_map(|(word, better)| {
            let mut capital = word.to_string();
            capital[..1].make_ascii_uppercase();
            // The standard library's type may be named, by its name.
            let is_type = *word == "mutex" || source.is_rust();
            let is_used = |word: &str| {
                parts(text).any(|part| part == word) || (word.contains(' ') && text.contains(word))
            };
            let is_quoted = text.contains(&format!("\"{word}\""));
            let is_bad = (is_used(word) || (!is_type && is_used(&capital))) && !is_quoted;
            is_bad.then(|| format!("`{word}`: the word for it is `{better}`"))
        })
    })
}

/// Words as they are, and the parts of names joined by underscores.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphabetic()).filter(|part| !part.is_empty())
}

fn paths(sources: &[Source]) -> Vec<Finding> {
    const PATHS: [&str; 4] = [
        concat!("/wo", "rk/"),
        concat!("/tm", "p/wt"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
    ];
    const INDEX: &str = "registry+https://github.com/rust-lang/crates.io-index";
    each_line(
        sources,
        |_| true,
        |source, i| {
            let text = &source.lines[i].text;
            let foreign = text.contains("registry+") && source.path == "Cargo.lock";
            if foreign && !text.contains(INDEX) {
                return Some("a registry that others may not have".into());
            }
            let path = PATHS.iter().find(|path| {
                text.match_indices(*path).any(|(at, _)| {
                    !text[..at].ends_with(|c: char| c.is_alphanumeric() || "_-.}".contains(c))
                })
            })?;
            Some(format!("`{path}` is a path of somebody's machine"))
        },
    )
}

fn makefile(sources: &[Source]) -> Vec<Finding> {
    let Some(source) = sources.iter().find(|source| source.path == "Makefile") else {
        return Vec::new();
    };
    let finding = |line: usize, reason: String| Finding { path: "Makefile".into(), line, reason };
    let lines = || source.lines.iter().map(|line| line.text.as_str()).enumerate();
    let phony: Vec<(usize, &str)> = lines()
        .filter_map(|(i, text)| Some((i, text.strip_prefix(".PHONY:")?)))
        .flat_map(|(i, names)| names.split_whitespace().map(move |name| (i, name)))
        .collect();
    let listed: Vec<(usize, &str)> = lines()
        .filter(|(_, text)| text.contains(" ## ") && !text.starts_with(['\t', '#']))
        .filter_map(|(i, text)| Some((i, text.split_once(':')?.0)))
        .collect();
    let unlisted = phony.iter().filter(|(_, name)| !listed.iter().any(|(_, other)| other == name));
    let unphony = listed.iter().filter(|(_, name)| !phony.iter().any(|(_, other)| other == name));
    unlisted
        .map(|(i, name)| finding(i + 1, format!("`make help` does not list `{name}`")))
        .chain(unphony.map(|(i, name)| finding(i + 1, format!("`{name}` is not in .PHONY"))))
        .collect()
}

fn codes(sources: &[Source]) -> Vec<Finding> {
    let words = || code::MODULE.iter().chain(&code::SERVER).map(|code| code.word);
    let mut seen = BTreeSet::new();
    let mut findings = Vec::new();
    for source in sources.iter().filter(|s| s.is_rust() && s.is_in("src/")) {
        for (i, line) in source.lines.iter().enumerate().filter(|(_, line)| !line.is_test) {
            for word in words() {
                let quoted = format!("\"{word}");
                let uses = line.text.match_indices(&quoted).filter(|(at, _)| {
                    let rest = &line.text[at + quoted.len()..];
                    line.code[*at..].starts_with('"')
                        && (rest.starts_with('"') || rest.starts_with(" \""))
                });
                for _ in uses {
                    if !seen.insert(word) {
                        let (path, reason) = (source.path.clone(), format!("`{word}` once more"));
                        findings.push(Finding { path, line: i + 1, reason });
                    }
                }
            }
        }
    }
    findings
}

/// Names of two sides of one thing: what is sent and who handles it, what waits and how it does so,
/// the arguments of a command line and what is made of them.
const SIDES: [&str; 16] = [
    "Acquire",
    "AcquireMany",
    "Claim",
    "Command",
    "Connection",
    "Extend",
    "Guard",
    "Holder",
    "Lease",
    "Lock",
    "Locker",
    "Node",
    "Release",
    "Survey",
    "Token",
    "Waiter",
];

fn twins(sources: &[Source]) -> Vec<Finding> {
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is_rust() && source.is_in("src/")) {
        for (i, line) in source.lines.iter().enumerate().filter(|(_, line)| !line.is_test) {
            let Some(name) = type_name(&line.code) else { continue };
            let is_sides = SIDES.contains(&name);
            if let Some(first) = seen.insert(name, &source.path).filter(|_| !is_sides) {
                let reason = format!("another type is called `{name}`, in {first}");
                findings.push(Finding { path: source.path.clone(), line: i + 1, reason });
            }
        }
    }
    findings
}

/// The name in `pub(super) struct Name<T> {` at the start of a line.
fn type_name(code: &str) -> Option<&str> {
    let code = match code.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => code,
    };
    let words = ["struct ", "enum ", "trait ", "type ", "union "];
    let rest = words.iter().find_map(|word| code.strip_prefix(word))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

fn reachable(sources: &[Source]) -> Vec<Finding> {
    let declared: BTreeSet<String> = sources
        .iter()
        .filter(|source| source.is_rust() && source.is_in("src/"))
        .flat_map(|source| {
            let folder = match source.path.rsplit_once('/') {
                Some((folder, "lib.rs" | "main.rs" | "mod.rs")) => folder.to_owned(),
                _ => source.path.trim_end_matches(".rs").to_owned(),
            };
            let names = source.lines.iter().filter_map(|line| module_name(&line.code));
            names.map(|name| format!("{folder}/{name}")).collect::<Vec<_>>()
        })
        .collect();
    each_line(
        sources,
        |s| s.is_rust() && s.is_in("src/"),
        |source, i| {
            let path = source.path.trim_end_matches(".rs").trim_end_matches("/mod");
            let is_root = path == "src/lib" || path == "src/main" || source.is_in("src/bin/");
            let is_bad = i == 0 && !is_root && !declared.contains(path);
            is_bad.then(|| "no file says `mod` of it: it is never compiled".into())
        },
    )
}

/// The name in `pub(crate) mod name;`.
fn module_name(code: &str) -> Option<&str> {
    let name = code.trim().strip_suffix(';')?.rsplit_once("mod ")?;
    (name.0.is_empty() || name.0.starts_with("pub")).then_some(name.1)
}
