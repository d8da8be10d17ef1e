//! The rule that files of a layer do not depend on each other in a circle.

use std::collections::{BTreeMap, BTreeSet};

use super::lexer::Source;
use super::rules::Finding;

/// Layers whose files are in an order.
const FOLDERS: [&str; 3] = ["src/client/", "src/cli/", "src/module/"];

/// One complaint for each file that depends on itself, directly or through others.
pub(crate) fn circles(sources: &[Source]) -> Vec<Finding> {
    FOLDERS.iter().flat_map(|folder| in_folder(sources, folder)).collect()
}

fn in_folder(sources: &[Source], folder: &str) -> Vec<Finding> {
    let name = |source: &Source| {
        let name = source.path.strip_prefix(folder)?.strip_suffix(".rs")?;
        (name != "mod" && !name.contains('/')).then(|| name.to_owned())
    };
    let files: BTreeMap<String, &Source> =
        sources.iter().filter_map(|source| Some((name(source)?, source))).collect();
    let uses: BTreeMap<&str, BTreeSet<&str>> =
        files.iter().map(|(name, source)| (name.as_str(), used(source, &files))).collect();
    let in_circle = uses.keys().filter(|name| reaches(&uses, name));
    in_circle
        .map(|name| Finding {
            path: format!("{folder}{name}.rs"),
            line: 1,
            reason: "depends on itself in a circle of files".to_owned(),
        })
        .collect()
}

/// The files that a file names behind `super::`, alone or in braces.
fn used<'f>(source: &Source, files: &'f BTreeMap<String, &Source>) -> BTreeSet<&'f str> {
    let code: Vec<&str> =
        source.lines.iter().filter(|line| !line.is_test).map(|line| line.code.as_str()).collect();
    let code = code.join("\n");
    let mut used = BTreeSet::new();
    for (at, path) in code.match_indices("super::") {
        let rest = &code[at + path.len()..];
        let end = if rest.starts_with('{') { rest.find(';') } else { rest.find(is_no_word) };
        let words = rest[..end.unwrap_or(rest.len())].split(is_no_word);
        used.extend(words.filter_map(|word| Some(files.get_key_value(word)?.0.as_str())));
    }
    used
}

fn is_no_word(c: char) -> bool {
    !c.is_alphanumeric() && c != '_'
}

/// Whether the uses of `start` lead back to it.
fn reaches(uses: &BTreeMap<&str, BTreeSet<&str>>, start: &str) -> bool {
    let mut seen = BTreeSet::new();
    let mut next: Vec<&str> = uses[start].iter().copied().collect();
    while let Some(name) = next.pop() {
        if name == start {
            return true;
        }
        if seen.insert(name) {
            next.extend(&uses[name]);
        }
    }
    false
}

#[test]
fn a_circle_is_found_whatever_its_length() {
    let file = |name: &str, text: &str| Source::new(&format!("src/client/{name}.rs"), text);
    let found = |sources: &[Source]| -> Vec<String> {
        circles(sources).into_iter().map(|finding| finding.path).collect()
    };
    let chain = |c: &str| {
        let a = file("a", "use super::{\n    b::B,\n    d,\n};\n");
        [a, file("b", "use super::c::C;\n"), file("c", c), file("d", "")]
    };
    let open = "use super::d;\n// super::a\n#[cfg(test)]\nmod tests {\n    use super::a;\n}\n";
    assert_eq!(found(&chain(open)), [""; 0]);
    let closed = found(&chain("fn f() -> super::a::A {}\n"));
    assert_eq!(closed, ["src/client/a.rs", "src/client/b.rs", "src/client/c.rs"]);
}
