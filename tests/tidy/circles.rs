//! The rule that files of a layer do not depend on each other in a circle.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::lexer::Source;
use super::rules::Finding;

/// Layers whose files are in an order.
const FOLDERS: [&str; 3] = ["src/client/", "src/cli/", "src/module/"];

/// The files that each file names, with the line where it does so first.
type Uses<'f> = BTreeMap<&'f str, BTreeMap<&'f str, usize>>;

/// One complaint for each circle that is a shortest one of some file.
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
    let uses: Uses<'_> =
        files.iter().map(|(name, source)| (name.as_str(), used(source, &files))).collect();
    let circles: BTreeSet<Vec<&str>> = uses.keys().filter_map(|name| circle(&uses, name)).collect();
    let finding = |circle: Vec<&str>| {
        let (first, next) = (circle[0], circle[1 % circle.len()]);
        Finding {
            path: format!("{folder}{first}.rs"),
            line: uses[first][next],
            reason: format!("a circle of files: {} -> {first}", circle.join(" -> ")),
        }
    };
    circles.into_iter().map(finding).collect()
}

/// The files that a file names behind `super::`, alone or in braces.
fn used<'f>(source: &Source, files: &'f BTreeMap<String, &Source>) -> BTreeMap<&'f str, usize> {
    let code: Vec<&str> =
        source.lines.iter().filter(|line| !line.is_test).map(|line| line.code.as_str()).collect();
    let code = code.join("\n");
    let mut used = BTreeMap::new();
    for (at, path) in code.match_indices("super::") {
        let rest = &code[at + path.len()..];
        let end = if rest.starts_with('{') { rest.find(';') } else { rest.find(is_no_word) };
        let mut line = code[..at].matches('\n').count() + 1;
        for piece in rest[..end.unwrap_or(rest.len())].split_inclusive(is_no_word) {
            if let Some((name, _)) = files.get_key_value(piece.trim_end_matches(is_no_word)) {
                used.entry(name.as_str()).or_insert(line);
            }
            line += piece.matches('\n').count();
        }
    }
    used
}

fn is_no_word(c: char) -> bool {
    !c.is_alphanumeric() && c != '_'
}

/// A shortest way from `start` back to it, from the file whose name is the first.
fn circle<'f>(uses: &Uses<'f>, start: &'f str) -> Option<Vec<&'f str>> {
    let (mut seen, mut ways) = (BTreeSet::new(), VecDeque::from([vec![start]]));
    while let Some(mut way) = ways.pop_front() {
        let next = &uses[way[way.len() - 1]];
        if next.contains_key(start) {
            let first = (0..way.len()).min_by_key(|&at| way[at])?;
            way.rotate_left(first);
            return Some(way);
        }
        let unseen = next.keys().copied().filter(|name| seen.insert(*name));
        ways.extend(unseen.map(|name| [&way[..], &[name]].concat()));
    }
    None
}

#[test]
fn a_circle_is_found_once_whatever_its_length() {
    let file = |name: &str, text: &str| Source::new(&format!("src/client/{name}.rs"), text);
    let found = |sources: &[Source]| -> Vec<String> {
        circles(sources).iter().map(ToString::to_string).collect()
    };
    let chain = |c: &str| {
        let a = file("a", "use super::{\n    d,\n    b::B,\n};\n");
        [a, file("b", "use super::c::C;\n"), file("c", c), file("d", "")]
    };
    let open = "use super::d;\n// super::a\n#[cfg(test)]\nmod tests {\n    use super::a;\n}\n";
    assert_eq!(found(&chain(open)), [""; 0]);
    let closed = found(&chain("fn f() -> super::a::A {}\n"));
    assert_eq!(closed, ["src/client/a.rs:3: a circle of files: a -> b -> c -> a"]);
    let short = found(&chain("\nuse super::c;\n"));
    assert_eq!(short, ["src/client/c.rs:2: a circle of files: c -> c"]);
    // Of b and c the shortest is another than of a.
    let both = found(&chain("use super::a;\nuse super::b;\n"));
    let two = "src/client/b.rs:1: a circle of files: b -> c -> b";
    assert_eq!(both, [closed[0].as_str(), two]);
}
