//! The options of a locker are the same everywhere: in the Rust client, in what the packages share,
//! and in each package, in its code and in what its users read.
//!
//! The lists are read from the sources, by what stands around them. One that is not found fails the
//! test, so a list that was moved or renamed does not go unread.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A list of options in the sources.
struct List {
    /// What it is, for people.
    what: &'static str,
    path: &'static str,
    /// Its parts: what stands before each, and behind it.
    parts: &'static [(&'static str, &'static str)],
    /// What stands before and behind each name. Names begin lines, or stand behind commas.
    around: (&'static str, &'static str),
    /// What else is there, and is no option of every language.
    others: &'static [&'static str],
    is_camel_case: bool,
}

const LISTS: [List; 11] = [
    List {
        what: "the client: LockerBuilder",
        path: "src/client/settings.rs",
        parts: &[("\nimpl LockerBuilder {", "\n}\n")],
        around: ("pub fn ", "(mut self"),
        // The packages have the nodes as an argument of its own, the unit of their language, the
        // names of files, and always the line.
        others: &["node", "lengths_in", "root_certificates", "client_certificate", "without_line"],
        is_camel_case: false,
    },
    List {
        what: "what the packages share: Settings",
        path: "packages/host/src/settings.rs",
        parts: &[("pub struct Settings {", "\n}")],
        around: ("pub ", ": "),
        others: &["nodes", "unit"],
        is_camel_case: false,
    },
    List {
        what: "the native part for Python: Core",
        path: "packages/python/src/locker.rs",
        parts: &[("signature = (nodes, *,", ")")],
        around: ("", ""),
        others: &[],
        is_camel_case: false,
    },
    List {
        what: "the types of that: Core",
        path: "packages/python/python/lockmod/_lockmod.pyi",
        parts: &[("nodes: list[str],\n        *,", ") -> None")],
        around: ("", ": "),
        others: &[],
        is_camel_case: false,
    },
    List {
        what: "the types in Python: _Settings",
        path: "packages/python/python/lockmod/_locker.py",
        parts: &[("class _Settings(TypedDict):", "\n\n")],
        around: ("", ": "),
        others: &[],
        is_camel_case: false,
    },
    List {
        what: "the parameters of Locker in Python",
        path: "packages/python/python/lockmod/_locker.py",
        parts: &[("nodes: str | Iterable[str],\n        *,", ") -> None")],
        around: ("", ": "),
        others: &[],
        is_camel_case: false,
    },
    List {
        what: "what Locker in Python passes on",
        path: "packages/python/python/lockmod/_locker.py",
        parts: &[("self._settings: _Settings = {", "\n        }")],
        around: ("\"", "\": "),
        others: &[],
        is_camel_case: false,
    },
    List {
        what: "the text of Locker in Python",
        path: "packages/python/python/lockmod/_locker.py",
        parts: &[("All lengths of time are in seconds.\n\n    - ", "\n\n    None stands for")],
        around: ("`", "`"),
        others: &[],
        is_camel_case: false,
    },
    List {
        what: "the native part for Node.js: Made",
        path: "packages/node/src/locker.rs",
        parts: &[("pub struct Made {", "\n}")],
        around: ("pub ", ": "),
        others: &["nodes"],
        is_camel_case: false,
    },
    List {
        what: "what Locker in Node.js accepts: SETTINGS",
        path: "packages/node/lib/options.js",
        parts: &[("const TERMS = {", "}"), ("const SETTINGS = {\n  ...TERMS,", "}")],
        around: ("", ": '"),
        others: &[],
        is_camel_case: true,
    },
    List {
        what: "the types of Node.js: LockerOptions",
        path: "packages/node/index.d.ts",
        parts: &[("export interface LockerOptions {", "\n}")],
        around: ("", "?: "),
        others: &[],
        is_camel_case: true,
    },
];

/// The names that an error has to spell in the style of JavaScript: those of several words.
const SPELLED: List = List {
    what: "what errors spell as Node.js does: spelled()",
    path: "packages/host/src/failure.rs",
    parts: &[("for name in [", "]")],
    around: ("\"", ""),
    others: &[],
    is_camel_case: false,
};

fn read(path: &str) -> String {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo tells where the package is");
    fs::read_to_string(Path::new(&root).join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn snake_case(name: &str) -> String {
    let small = |c: char| {
        let before = if c.is_uppercase() { "_" } else { "" };
        format!("{before}{}", c.to_lowercase())
    };
    name.chars().map(small).collect()
}

impl List {
    /// The part of the text that has this list, from here to there.
    fn places(&self, text: &str) -> Vec<(usize, usize)> {
        let place = |(before, behind): &(&str, &str)| {
            let start = text.find(before).map(|start| start + before.len());
            let start = start.unwrap_or_else(|| panic!("{}: there is no {before:?}", self.what));
            let length = text[start..].find(behind);
            let length = length.unwrap_or_else(|| panic!("{}: no {behind:?} there", self.what));
            (start, start + length)
        };
        self.parts.iter().map(place).collect()
    }

    /// The options that it has in this text.
    fn options(&self, text: &str) -> BTreeSet<String> {
        let name = |item: &str| {
            let item = item.replace("pub const fn ", "pub fn ");
            let rest = item.trim().trim_start_matches("- ").strip_prefix(self.around.0)?;
            let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
            // The arguments of a function may be on lines of their own.
            let is_long = &rest[end..] == "(" && self.around.1.starts_with('(');
            let is_name = end > 0 && (rest[end..].starts_with(self.around.1) || is_long);
            is_name.then(|| rest[..end].to_owned())
        };
        let parts = self.places(text).into_iter().map(|(start, end)| &text[start..end]);
        let names = parts.flat_map(|part| part.split([',', '\n'])).filter_map(name);
        let names = names.map(|name| if self.is_camel_case { snake_case(&name) } else { name });
        names.filter(|name| !self.others.contains(&name.as_str())).collect()
    }
}

/// What each list lacks that another has.
fn missing(read: impl Fn(&List) -> String) -> Vec<String> {
    let found = LISTS.each_ref().map(|list| list.options(&read(list)));
    let all: BTreeSet<String> = found.iter().flatten().cloned().collect();
    let lists = LISTS.iter().zip(&found);
    let mut missing: Vec<String> = lists
        .flat_map(|(list, has)| all.difference(has).map(|name| complaint(list, name)))
        .collect();
    let spelled = SPELLED.options(&read(&SPELLED));
    let of_several_words = all.iter().filter(|name| name.contains('_'));
    let lacking = of_several_words.filter(|name| !spelled.contains(*name));
    missing.extend(lacking.map(|name| complaint(&SPELLED, name)));
    missing
}

fn complaint(list: &List, name: &str) -> String {
    format!("{} ({}) lacks {name}", list.what, list.path)
}

#[test]
fn every_option_of_the_locker_is_in_all_packages() {
    let missing = missing(|list| read(list.path));
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}

/// The text with a sign that is no name in place of this one.
fn without(text: &str, name: &str) -> String {
    let is_of_name = |c: char| c == '_' || c.is_alphanumeric();
    let mut rest = text;
    let mut kept = String::new();
    while let Some(start) = rest.find(is_of_name) {
        let length = rest[start..].find(|c| !is_of_name(c)).unwrap_or(rest.len() - start);
        let word = &rest[start..start + length];
        kept += &rest[..start];
        kept += if snake_case(word) == name { "?" } else { word };
        rest = &rest[start + length..];
    }
    kept + rest
}

#[test]
fn an_option_that_one_list_lacks_is_found() {
    for list in LISTS.iter().chain([&SPELLED]) {
        let text = read(list.path);
        let options = list.options(&text);
        assert!(options.len() > 1, "{}: {options:?}", list.what);
        for name in options {
            let mut lacking = text.clone();
            for (start, end) in list.places(&text).into_iter().rev() {
                lacking.replace_range(start..end, &without(&text[start..end], &name));
            }
            let is_this = |other: &List| other.what == list.what;
            let missing =
                missing(|other| if is_this(other) { lacking.clone() } else { read(other.path) });
            assert_eq!(missing, [complaint(list, &name)]);
        }
    }
}
