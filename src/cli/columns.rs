//! Which columns of a table fit into a terminal, and how wide they are.
//!
//! Names come first: a column of numbers is shown only while the two columns of text, a name and
//! its description, have the room that they need. Names that are cut stay different from each
//! other.

use std::collections::HashSet;

use super::out::{cut, head, tail, width};

/// Between two columns.
const GAP: usize = 1;

/// A column that may be left out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Optional {
    pub(super) column: usize,
    /// It is shown if this many columns of the terminal remain for the two columns of text, or as
    /// many as those need.
    pub(super) leaves: usize,
}

/// Columns of [`NODE_COLUMNS`](super::rows::NODE_COLUMNS) and
/// [`LOCK_COLUMNS`](super::rows::LOCK_COLUMNS) that others name.
pub(super) const STATE: usize = 2;
pub(super) const WAITING: usize = 5;
pub(super) const NODES: usize = 6;

/// The other columns of nodes, the most useful first.
pub(super) const NODE_OPTIONAL: [Optional; 5] = [
    Optional { column: 3, leaves: 40 },
    Optional { column: 6, leaves: 40 },
    unless_names_are_cut(4),
    unless_names_are_cut(1),
    unless_names_are_cut(5),
];
/// The other columns of locks.
pub(super) const LOCK_OPTIONAL: [Optional; 5] = [
    Optional { column: 4, leaves: 24 },
    Optional { column: WAITING, leaves: 40 },
    Optional { column: NODES, leaves: 40 },
    unless_names_are_cut(3),
    unless_names_are_cut(2),
];

const fn unless_names_are_cut(column: usize) -> Optional {
    Optional { column, leaves: usize::MAX }
}

/// The columns to show, from left to right, with their widths. The two in `text` are always among
/// them; those in `optional` are tried in their order.
pub(super) fn fit<const N: usize>(
    titles: [&str; N],
    rows: &[[String; N]],
    text: [usize; 2],
    optional: &[Optional],
    room: usize,
) -> Vec<(usize, usize)> {
    let needed = |column: usize| {
        let cells = rows.iter().map(|row| width(&row[column]));
        cells.chain([width(titles[column])]).max().unwrap_or(0)
    };
    let (first, second) = (needed(text[0]), needed(text[1]));
    let mut left = room.saturating_sub(GAP);
    let mut shown = Vec::new();
    for &Optional { column, leaves } in optional {
        let rest = left.checked_sub(needed(column) + GAP);
        let Some(rest) = rest.filter(|&rest| rest >= leaves.min(first + second)) else { continue };
        left = rest;
        shown.push((column, needed(column)));
    }
    // What both need, or more than half for the name.
    let name = first.min(left.saturating_sub(second).max(left * 3 / 5));
    shown.extend([(text[0], name), (text[1], left - name)]);
    shown.sort_unstable();
    shown
}

/// Cuts the names in the first column so that they stay different.
pub(super) fn shorten<const N: usize>(rows: &mut [[String; N]], columns: &[(usize, usize)]) {
    let Some(&(_, columns)) = columns.iter().find(|(column, _)| *column == 0) else { return };
    let names: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    let names = distinct(&names, columns);
    for (row, name) in rows.iter_mut().zip(names) {
        row[0] = name;
    }
}

/// The names, cut to `columns` columns, and different from each other as far as possible.
pub(super) fn distinct(names: &[&str], columns: usize) -> Vec<String> {
    let is_short = |name: &str| width(name) <= columns;
    let middle = |name: &&str| {
        if is_short(name) {
            return (*name).to_owned();
        }
        let kept = columns.saturating_sub(1);
        let end = tail(name, kept / 3);
        cut(&format!("{}…{end}", head(name, kept - width(end))), columns)
    };
    let shortened: Vec<String> = names.iter().map(middle).collect();
    if shortened.iter().collect::<HashSet<_>>().len() == names.len() {
        return shortened;
    }
    // They differ in the middle: leave out their common start.
    let common = common_start(names);
    let rest = |name: &&str| match is_short(name) {
        true => (*name).to_owned(),
        false => cut(&format!("…{}", &name[common..]), columns),
    };
    names.iter().map(rest).collect()
}

/// The length of the common start of all names, in bytes.
fn common_start(names: &[&str]) -> usize {
    let Some((first, others)) = names.split_first() else { return 0 };
    let is_common = |end: &usize| others.iter().all(|name| name.starts_with(&first[..*end]));
    let ends = first.char_indices().map(|(at, _)| at).chain([first.len()]);
    ends.take_while(is_common).last().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TITLES: [&str; 4] = ["LOCK", "HOLDER", "FENCE", "LEFT"];
    const OPTIONAL: [Optional; 2] =
        [Optional { column: 3, leaves: 24 }, Optional { column: 2, leaves: usize::MAX }];

    fn row(name: &str, holder: &str) -> [String; 4] {
        [name, holder, "4611686018427387", "29.9 s"].map(str::to_owned)
    }

    #[test]
    fn numbers_are_left_out_before_names_are_cut() {
        let fit = |rows: &[_], room| fit(TITLES, rows, [0, 1], &OPTIONAL, room);
        let short = [row("job", "me")];
        assert_eq!(fit(&short, 80), [(0, 4), (1, 51), (2, 16), (3, 6)]);
        let long = [row(&"n".repeat(30), &"h".repeat(30))];
        assert_eq!(fit(&long, 80), [(0, 30), (1, 42), (3, 6)], "both fit without the fence");
        assert_eq!(fit(&long, 38), [(0, 18), (1, 12), (3, 6)]);
        assert_eq!(fit(&long, 28), [(0, 16), (1, 11)], "no room for numbers");
        for room in 0..60 {
            let shown = fit(&long, room);
            let widths: usize = shown.iter().map(|(_, width)| width).sum();
            assert!(widths + shown.len() - 1 <= room.max(1), "{room}: {shown:?}");
        }
    }

    #[test]
    fn names_that_are_cut_stay_different() {
        let nodes = ["redis-lock-1.prod.example.com:6379", "redis-lock-2.prod.example.com:6379"];
        assert_eq!(distinct(&nodes, 34), nodes);
        assert_eq!(
            distinct(&nodes, 25),
            ["redis-lock-1.pro…com:6379", "redis-lock-2.pro…com:6379"]
        );
        assert_eq!(distinct(&nodes, 15), ["…1.prod.exampl…", "…2.prod.exampl…"]);
        assert_eq!(distinct(&["same", "same"], 9), ["same", "same"]);
        assert_eq!(distinct(&["ロック1", "ロック2"], 4), ["ロ…1", "ロ…2"]);
        assert_eq!(distinct(&[], 4), Vec::<String>::new());
        for columns in 0..30 {
            assert!(distinct(&nodes, columns).iter().all(|name| width(name) <= columns));
        }
    }
}
