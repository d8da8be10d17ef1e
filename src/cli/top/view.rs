//! What `lockmod top` looks like, in terminals of any size.
//!
//! Colours mean the same everywhere: green is as it should be, yellow needs attention, red is out
//! of order.

use ratatui::Frame;
use ratatui::layout::{Constraint, Flex, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState, Wrap};

use super::super::columns::{LOCK_OPTIONAL, NODE_OPTIONAL, NODES, STATE, WAITING, fit, shorten};
use super::super::doubts;
use super::super::out::{cut, head, width};
use super::super::rows::{self, Health, LOCK_COLUMNS, NODE_COLUMNS};
use super::state::{Input, NAME_MAX, State};
use crate::client::{LockSurvey, Survey, is_plain};

const KEYS: &str = "? help   q quit   ↑↓ select   / filter   s sort   d take the lock   r refresh";
const KEYS_NARROW: &str = "? help   q quit   / filter   s sort";
const HELP: &str = "\
↑ ↓ j k      select a lock
PgUp PgDn    ten locks up or down
Home End     the first or the last lock
/            show only locks with a text in their name or holder; Esc shows all
s            sort: most waiters, name, held longest, ending soonest
d            take the lock from whoever holds it
r            ask the nodes now
q Ctrl-C     quit

green: as it should be
yellow: a node that grants nothing for now; a lock that others wait for, or that fewer nodes than \
a quorum hold
red: a node that does not answer; no quorum";
/// The same for a terminal of 40 columns and 12 lines.
const HELP_SMALL: &str = "\
↑ ↓ j k      select a lock
PgUp PgDn    ten up or down
Home End     first or last
/ Esc        filter by name or holder
s            sort
d            take the lock
r  q         ask now; quit
green: well; yellow: waits, or grants
nothing for now; red: out of order";
/// The most lines for the result of an order.
const MESSAGE_LINES: usize = 3;
/// The most lines that the locks keep when states of nodes are too long for their column.
const LOCK_LINES: usize = 6;

pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    let footer = footer(state, area.width);
    let nodes = state.survey.as_ref().map_or(1, |survey| survey.nodes.len()) + 3;
    // With their frame and titles.
    let locks = (state.locks().len() + 3).clamp(4, LOCK_LINES);
    let taken = nodes + locks + usize::from(footer.1);
    let spare = usize::from(area.height).saturating_sub(taken);
    let table = state.survey.as_ref().map(|survey| NodeTable::of(survey, inner(area), spare));
    let notes = table.as_ref().map_or(0, |table| table.notes.len());
    let nodes = u16::try_from(nodes + notes).unwrap_or(u16::MAX);
    let parts = [Constraint::Max(nodes), Constraint::Min(4), Constraint::Length(footer.1)];
    let [top, middle, bottom] = Layout::vertical(parts).areas(frame.area());
    match state.survey.as_ref().zip(table) {
        Some((survey, table)) => {
            draw_nodes(frame, top, (survey, &table));
            draw_locks(frame, middle, survey, state);
        }
        None => frame.render_widget(Paragraph::new("asking the nodes ..."), top),
    }
    frame.render_widget(Paragraph::new(footer.0).wrap(Wrap { trim: true }).dim(), bottom);
    match &state.input {
        Input::Look | Input::Filter => {}
        Input::Help => draw_help(frame),
        Input::Ask(name) => draw_box(frame, &question(name), Wrap { trim: true }),
    }
    // In case something was forgotten above: nothing that controls the terminal gets out of here.
    for cell in &mut frame.buffer_mut().content {
        if !cell.symbol().chars().all(is_plain) {
            cell.set_symbol("?");
        }
    }
}

/// The last lines, and how many there are.
fn footer(state: &State, columns: u16) -> (String, u16) {
    if state.input == Input::Filter {
        return (format!("filter: {}▏   Enter keep   Esc clear", state.filter), 1);
    }
    if state.message.is_empty() {
        let keys = if width(KEYS) > columns.into() { KEYS_NARROW } else { KEYS };
        return (keys.to_owned(), 1);
    }
    // Words are kept together, which may take one more line.
    let lines = width(&state.message).div_ceil(usize::from(columns.max(1)));
    let lines = if lines > 1 { lines + 1 } else { lines };
    (state.message.clone(), lines.min(MESSAGE_LINES) as u16)
}

/// The rows of the nodes, and what their column cuts off.
struct NodeTable {
    health: Vec<Health>,
    rows: Vec<[String; 7]>,
    columns: Vec<(usize, usize)>,
    /// The states that are cut, in full, and the moves of slots, in lines that fit.
    notes: Vec<String>,
}

impl NodeTable {
    /// For this many columns, with this many lines of notes at most.
    fn of(survey: &Survey, room: usize, lines: usize) -> NodeTable {
        let (health, mut rows): (Vec<Health>, Vec<_>) =
            survey.nodes.iter().map(|node| rows::node(survey, node)).unzip();
        let columns = fit(NODE_COLUMNS, &rows, [0, STATE], &NODE_OPTIONAL, room);
        let of_state = columns.iter().find(|(column, _)| *column == STATE);
        let of_state = of_state.map_or(0, |(_, width)| *width);
        let cut_off = rows.iter().filter(|row| width(&row[STATE]) > of_state);
        let states = cut_off.map(|row| format!("{}: {}", row[0], row[STATE]));
        let notes = states.chain(survey.nodes.iter().flat_map(rows::moving));
        let mut notes: Vec<String> = notes.flat_map(|note| wrap(&note, room)).collect();
        if notes.len() > lines {
            notes.truncate(lines);
            if let Some(last) = notes.last_mut() {
                *last = format!("{}…", head(last, room.saturating_sub(1)));
            }
        }
        shorten(&mut rows, &columns);
        NodeTable { health, rows, columns, notes }
    }
}

/// The text in lines of this many columns, broken between words where that is possible.
fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut rest = word;
        let line = lines.last().map_or("", String::as_str);
        let has_room = line.is_empty() || width(line) + 1 + width(word) <= columns;
        if !has_room {
            lines.push(String::new());
        }
        while width(rest) > columns {
            let part = head(rest, columns);
            // A character that is wider than the line.
            if part.is_empty() {
                return lines;
            }
            rest = &rest[part.len()..];
            lines.last_mut().into_iter().for_each(|line| line.push_str(part));
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            let gap = if line.is_empty() { "" } else { " " };
            line.push_str(gap);
            line.push_str(rest);
        }
    }
    lines
}

fn draw_nodes(frame: &mut Frame<'_>, area: Rect, (survey, of_nodes): (&Survey, &NodeTable)) {
    let NodeTable { health, rows, columns, notes } = of_nodes;
    let color = |row: usize, column: usize| match (column, health[row]) {
        (STATE, Health::Good) => Color::Green,
        (STATE, Health::Abstains) => Color::Yellow,
        (STATE, Health::Bad) => Color::Red,
        _ => Color::Reset,
    };
    let title = rows::quorum(survey);
    let title = if width(&title) > inner(area) { rows::quorum_in_short(survey) } else { title };
    let title = Line::from(format!(" {title} ")).fg(match survey.margin() {
        ..0 => Color::Red,
        0 => Color::Yellow,
        1.. => Color::Reset,
    });
    let block = Block::bordered().title(title);
    // Below the titles.
    let room = usize::from(block.inner(area).height).saturating_sub(1);
    let block = match rows.len().saturating_sub(room) {
        0 => block,
        hidden => block.title_bottom(format!(" {hidden} more ")),
    };
    let parts = [Constraint::Length(rows.len() as u16 + 1), Constraint::Min(0)];
    let [rows_area, notes_area] = Layout::vertical(parts).areas(block.inner(area));
    frame.render_widget(block, area);
    frame.render_widget(table(NODE_COLUMNS, rows, columns, color), rows_area);
    frame.render_widget(Paragraph::new(Text::from(notes.join("\n"))), notes_area);
}

fn draw_locks(frame: &mut Frame<'_>, area: Rect, survey: &Survey, state: &State) {
    let locks = state.locks();
    let mut rows: Vec<_> =
        locks.iter().map(|&lock| rows::lock(survey, lock, rows::LABELS)).collect();
    let columns = fit(LOCK_COLUMNS, &rows, [0, 1], &LOCK_OPTIONAL, inner(area));
    shorten(&mut rows, &columns);
    let is_contended = |lock: &LockSurvey| lock.waiters() > 0;
    let is_partial = |lock: &LockSurvey| lock.held_count() < survey.quorum;
    let color = |row: usize, column: usize| match column {
        WAITING if is_contended(locks[row].1) => Color::Yellow,
        NODES if is_partial(locks[row].1) => Color::Yellow,
        _ => Color::Reset,
    };
    let table = table(LOCK_COLUMNS, &rows, &columns, color)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(Block::bordered().title(format!(" {} ", locks_title(survey, state, locks.len()))));
    let mut place = TableState::new().with_selected(state.selection());
    frame.render_stateful_widget(table, area, &mut place);
}

/// Which lock is selected, of how many, and in which order they are.
fn locks_title(survey: &Survey, state: &State, count: usize) -> String {
    let which = if state.filter.is_empty() {
        String::new()
    } else {
        format!(" with '{}'", rows::shown(state.filter.as_bytes()))
    };
    let Some(place) = state.selection() else {
        return match (which.is_empty(), doubts::is_certain(survey)) {
            (true, true) => "no lock is held".to_owned(),
            (true, false) => "no lock is known to be held".to_owned(),
            (false, _) => format!("no lock{which}"),
        };
    };
    let is_part = survey.is_cut || !survey.given_up.is_empty();
    let more = if is_part || !doubts::incomplete(survey).is_empty() { " or more" } else { "" };
    format!("lock {} of {count}{more}{which}, {}", place + 1, state.order.words())
}

/// The columns within a border.
fn inner(area: Rect) -> usize {
    usize::from(area.width).saturating_sub(2)
}

fn table<'r, const N: usize>(
    titles: [&'r str; N],
    rows: &'r [[String; N]],
    columns: &[(usize, usize)],
    color: impl Fn(usize, usize) -> Color,
) -> Table<'r> {
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width as u16));
    let row = |(index, row): (usize, &'r [String; N])| {
        let cell = |&(column, width): &(usize, usize)| {
            Cell::new(cut(&row[column], width)).fg(color(index, column))
        };
        Row::new(columns.iter().map(cell).collect::<Vec<_>>())
    };
    let rows: Vec<Row<'r>> = rows.iter().enumerate().map(row).collect();
    let titles = columns.iter().map(|(column, _)| titles[*column]);
    Table::new(rows, widths).header(Row::new(titles).bold())
}

fn question(name: &[u8]) -> String {
    format!(
        "Take '{}' from whoever holds it, all readers included? It is deleted on all nodes. \
         Holders learn of it at their next renewal, and work on until then: only the fence \
         protects you.\n\ny: yes   any other key: no",
        cut(&rows::shown_name(name), NAME_MAX)
    )
}

/// Draws the help for the keys, or as much as there is room for.
fn draw_help(frame: &mut Frame<'_>) {
    let is_small = boxed(frame.area(), HELP).1 > frame.area().height;
    draw_box(frame, if is_small { HELP_SMALL } else { HELP }, Wrap { trim: false });
}

/// The columns of a box for a text, and the height that it needs.
fn boxed(area: Rect, text: &str) -> (Rect, u16) {
    let [area] = Layout::horizontal([Constraint::Max(68)]).flex(Flex::Center).areas(area);
    let columns = inner(area).max(1);
    let lines = text.lines().map(|line| width(line).div_ceil(columns).max(1));
    // Words are kept together, which may take one more line here and there.
    let spare = text.lines().filter(|line| width(line) > columns).count();
    (area, u16::try_from(lines.sum::<usize>() + spare + 2).unwrap_or(u16::MAX))
}

/// Draws a text in a box in the middle, as high as it needs.
fn draw_box(frame: &mut Frame<'_>, text: &str, wrap: Wrap) {
    let (area, height) = boxed(frame.area(), text);
    let [area] = Layout::vertical([Constraint::Max(height)]).flex(Flex::Center).areas(area);
    let text = Paragraph::new(Text::from(text)).wrap(wrap).block(Block::bordered());
    frame.render_widget(Clear, area);
    frame.render_widget(text, area);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};
    use ratatui::{Terminal, buffer::Buffer};

    use super::super::state::Order;
    use super::*;
    use crate::client::{
        LockInfo, LockState, LockSurvey, NodeField, NodeReport, NodeStatus, NodeSurvey, SlotMove,
        SlotShare, Vote,
    };
    use crate::engine::{Fence, SLOTS};

    fn status(highest_fence: u64, quarantine_left: Option<Duration>) -> NodeStatus {
        NodeStatus {
            is_master: true,
            quarantine_left,
            highest_fence: Fence::new(highest_fence).unwrap(),
            fields: [(NodeField::Locks, "4"), (NodeField::Grants, "17")].into(),
            ..NodeStatus::default()
        }
    }

    fn lock(label: &str, waiters: u64, held_for: u64) -> LockSurvey {
        let info = LockInfo {
            state: LockState::Held,
            fence: Fence::new(7).unwrap(),
            left: Some(Duration::from_secs(20)),
            label: Some(label.to_owned()),
            held_for: Some(Duration::from_secs(held_for)),
            waiters,
            ..LockInfo::default()
        };
        LockSurvey { nodes: vec![Some(info.clone()), Some(info), None] }
    }

    fn survey(locks: &[(&str, LockSurvey)]) -> Survey {
        let nodes = vec![
            NodeSurvey::of("one:6379", Ok(status(90, None))),
            NodeSurvey::of("two:6379", Ok(status(80, Some(Duration::from_millis(1_500))))),
            NodeSurvey::of("three:6379", Err(Vote::TimedOut)),
        ];
        let locks = locks.iter().map(|(name, lock)| (name.as_bytes().to_vec(), lock.clone()));
        Survey { locks: locks.collect(), ..Survey::of(nodes, 2) }
    }

    fn drawn(state: &State, (width, height): (u16, u16)) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        terminal.backend().buffer().clone()
    }

    fn lines(buffer: &Buffer) -> Vec<String> {
        let width = usize::from(buffer.area.width);
        let line =
            |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect();
        buffer.content.chunks(width).map(line).collect()
    }

    fn press(state: &mut State, code: KeyCode) -> Order {
        state.pressed(KeyEvent::from(code))
    }

    #[test]
    fn nodes_are_shown_with_their_state_and_lag() {
        let mut state = State::default();
        assert!(lines(&drawn(&state, (80, 10)))[0].starts_with("asking the nodes"));
        state.surveyed(survey(&[]));
        let buffer = drawn(&state, (110, 12));
        let lines = lines(&buffer);
        let quorum = "1 of 3 nodes grant locks, and of 1 it is not known; a quorum is 2";
        assert!(lines[0].contains(quorum));
        assert_eq!(lines[0].chars().count(), 110);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines[2])[..3], ["│one:6379", "master", "grants"]);
        assert!(lines[3].contains("in quarantine for 1.5s"));
        assert_eq!(words(&lines[2])[3..], ["4", "17", "90", "0", "│"]);
        assert!(lines[4].contains("timed out"), "{lines:#?}");
        let color = |text: &str| {
            let row = lines.iter().position(|line| line.contains(text)).unwrap();
            let byte = lines[row].find(text).unwrap();
            let column = lines[row][..byte].chars().count();
            buffer[(column as u16, row as u16)].fg
        };
        assert_eq!(color("grants "), Color::Green);
        assert_eq!(color("in quarantine"), Color::Yellow);
        assert_eq!(color("timed out"), Color::Red);
    }

    #[test]
    fn locks_are_in_the_order_of_waiters_and_then_of_hold_time() {
        let mut state = State::default();
        let locks = [("a", lock("x", 0, 5)), ("b", lock("y", 3, 1)), ("c", lock("z", 0, 50))];
        state.surveyed(survey(&locks));
        let lines = lines(&drawn(&state, (110, 14)));
        let place = |label: &str| lines.iter().position(|line| line.contains(label)).unwrap();
        assert!(place(" y ") < place(" z ") && place(" z ") < place(" x "), "{lines:#?}");
        assert!(lines[place(" z ")].contains("50s") && lines[place(" z ")].contains("2/3"));
    }

    #[test]
    fn a_lock_is_taken_only_after_a_yes_to_its_own_name() {
        let mut state = State::default();
        assert_eq!(press(&mut state, KeyCode::Char('d')), Order::GoOn);
        assert_eq!(state.input, Input::Look, "there is nothing to take");
        state.surveyed(survey(&[("a", lock("x", 2, 5)), ("b", lock("y", 1, 1))]));
        press(&mut state, KeyCode::Down);
        press(&mut state, KeyCode::Char('d'));
        // The order has changed meanwhile, but the question is about the lock that was selected.
        state.surveyed(survey(&[("a", lock("x", 0, 5)), ("b", lock("y", 1, 1))]));
        assert!(
            lines(&drawn(&state, (80, 20))).concat().contains("Take 'b' from whoever holds it")
        );
        assert_eq!(press(&mut state, KeyCode::Enter), Order::GoOn);
        assert_eq!(press(&mut state, KeyCode::Char('y')), Order::GoOn);
        press(&mut state, KeyCode::Char('d'));
        let order = press(&mut state, KeyCode::Char('y'));
        assert_eq!(order, Order::ForceRelease(b"b".to_vec()));
        let report = |vote| NodeReport::new(Arc::from("n"), vote);
        state.force_released(b"b", &[report(Vote::Confirmed), report(Vote::TimedOut)]);
        let lines = lines(&drawn(&state, (80, 20)));
        assert!(lines[19].starts_with("'b' was deleted on 1 of 2 nodes; n: timed out"));
        for _ in 0..10 {
            assert!(!state.message.is_empty());
            state.surveyed(survey(&[]));
        }
        state.surveyed(survey(&[]));
        assert_eq!(state.message, "", "it was about another time");
    }

    #[test]
    fn nodes_for_which_a_terminal_is_too_low_are_counted() {
        let mut state = State::default();
        state.surveyed(survey(&[]));
        let shown = |height| lines(&drawn(&state, (110, height))).concat();
        assert!(!shown(11).contains(" more "), "{}", shown(11));
        let low = shown(9);
        assert!(low.contains("one:6379") && low.contains("└ 2 more ─"), "{low}");
        assert!(!low.contains("two:6379"), "{low}");
    }

    /// A long name pushed the answers out of the box, and the result out of the last lines.
    #[test]
    fn a_long_name_leaves_room_for_what_is_said_of_it() {
        let (mut state, name) = (State::default(), "n".repeat(5_000));
        state.surveyed(survey(&[(&name, lock("x", 0, 5))]));
        press(&mut state, KeyCode::Char('d'));
        let text = lines(&drawn(&state, (80, 24))).concat();
        assert!(text.contains("Take 'nnn") && text.contains("y: yes"), "{text}");
        press(&mut state, KeyCode::Char('n'));
        let report = |vote| NodeReport::new(Arc::from("n"), vote);
        state.force_released(name.as_bytes(), &[report(Vote::Confirmed), report(Vote::NotHeld)]);
        assert!(lines(&drawn(&state, (80, 24))).concat().contains("was deleted on 1 of 2 nodes"));
        state.force_released(b"b", &[report(Vote::NotHeld)]);
        assert!(lines(&drawn(&state, (80, 24))).concat().contains("nobody held 'b' any more"));
    }

    #[test]
    fn the_selection_stays_with_its_lock_and_then_with_its_place() {
        let mut state = State::default();
        let three = [("a", lock("x", 9, 1)), ("b", lock("y", 8, 1)), ("c", lock("z", 7, 1))];
        state.surveyed(survey(&three));
        press(&mut state, KeyCode::End);
        assert_eq!(state.selection(), Some(2));
        press(&mut state, KeyCode::Up);
        state.surveyed(survey(&[("b", lock("y", 8, 1)), three[0].clone(), three[2].clone()]));
        assert_eq!(state.selection(), Some(1));
        state.surveyed(survey(&[three[0].clone(), three[2].clone()]));
        assert_eq!(state.selection(), Some(1), "the next one");
        state.surveyed(survey(&three[..1]));
        assert_eq!(state.selection(), Some(0), "the last one");
        state.surveyed(survey(&[]));
        assert_eq!(state.selection(), None);
        assert_eq!(press(&mut state, KeyCode::Down), Order::GoOn);
        assert_eq!(press(&mut state, KeyCode::Char('q')), Order::Quit);
    }

    /// The colour of the cells that show this text.
    fn color(buffer: &Buffer, text: &str) -> Color {
        let lines = lines(buffer);
        let row = lines.iter().position(|line| line.contains(text)).unwrap();
        let column = lines[row][..lines[row].find(text).unwrap()].chars().count();
        buffer[(column as u16, row as u16)].fg
    }

    fn type_text(state: &mut State, text: &str) {
        text.chars().for_each(|c| assert_eq!(press(state, KeyCode::Char(c)), Order::GoOn));
    }

    #[test]
    fn names_are_whole_and_nodes_differ_in_a_small_terminal() {
        let mut state = State::default();
        let name = "orders/2041/invoice-for-customer";
        let mut small = survey(&[(name, lock("billing@web-3.example", 2, 5))]);
        for (node, number) in small.nodes.iter_mut().zip(1..) {
            node.node = Arc::from(format!("redis-lock-{number}.production.example.com:6379"));
        }
        state.surveyed(small);
        let text = lines(&drawn(&state, (80, 24))).join("\n");
        for shown in [name, "billing@web-3.example", "20s", "timed out", "in quarantine for"] {
            assert!(text.contains(shown), "{shown}:\n{text}");
        }
        let narrow = lines(&drawn(&state, (40, 24))).join("\n");
        assert!(narrow.contains("orders/204") && narrow.contains("20s"), "{narrow}");
        for text in [text, narrow] {
            let nodes = text.lines().skip(2).take(3);
            let names: std::collections::BTreeSet<&str> =
                nodes.filter_map(|line| line.split_whitespace().next()).collect();
            assert_eq!(names.len(), 3, "{text}");
        }
    }

    /// Regression: only the beginning of a reason could be seen, and no key showed the rest.
    #[test]
    fn a_state_that_is_cut_is_shown_in_full_below_the_nodes() {
        let mut state = State::default();
        let mut survey = survey(&[("a", lock("x", 0, 1))]);
        let reason = "connection refused by a machine that is said to be far, far away";
        survey.nodes[2].status = Err(Vote::Unreachable(reason.into()));
        state.surveyed(survey);
        let text = lines(&drawn(&state, (80, 24)));
        let inside: Vec<&str> = text.iter().map(|line| line.trim_matches(['│', ' '])).collect();
        let full = format!("three:6379: unreachable: {reason}");
        assert!(inside.join(" ").contains(&full), "{text:#?}");
        assert!(!inside.iter().any(|line| line.starts_with("two:6379: ")), "{text:#?}");
        assert!(text.concat().contains("lock 1 of 1"), "{text:#?}");
        // Regression: where there was little room, locks kept more lines than they needed, and
        // nothing showed that the rest of a state was missing.
        let text = lines(&drawn(&state, (80, 12)));
        assert!(text[5].starts_with("│three:6379: unreachable: connection refused by a machine"));
        assert!(text[5].trim_end_matches(['│', ' ']).ends_with('…'), "{text:#?}");
        assert!(text.concat().contains("lock 1 of 1") && text[9].contains(" x "), "{text:#?}");
        let text = lines(&drawn(&state, (60, 14)));
        let inside: Vec<&str> = text.iter().map(|line| line.trim_matches(['│', ' '])).collect();
        let is_whole = inside.join(" ").contains(&full) && !text.concat().contains("far…");
        assert!(is_whole && text.concat().contains("lock 1 of 1"), "{text:#?}");
        // The locks keep a few lines, if there are so many.
        let names: Vec<String> = (0..9).map(|number| format!("a{number}")).collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), lock("x", 0, 1))).collect();
        let mut survey = self::survey(&many);
        survey.nodes[2].status = Err(Vote::Unreachable(reason.into()));
        state.surveyed(survey);
        let text = lines(&drawn(&state, (60, 14)));
        let shown = text.iter().filter(|line| line.starts_with("│a")).count();
        assert!(shown == 3 && text.concat().contains('…'), "{text:#?}");
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("a ロックx", 4), ["a", "ロッ", "クx"]);
        assert_eq!(wrap("ロ", 1), [""]);
    }

    /// Regression: only `status` showed them.
    #[test]
    fn moves_of_slots_are_shown_below_the_nodes() {
        let mut state = State::default();
        let mut survey = survey(&[]);
        let share = SlotShare {
            granting: SLOTS,
            moving: vec![SlotMove { slots: 2, untaken: 0, from: "a:1".into(), to: "b:1".into() }],
            ..SlotShare::default()
        };
        survey.nodes[0].status.as_mut().unwrap().slots = Some(share);
        state.surveyed(survey);
        let text = lines(&drawn(&state, (80, 14)));
        assert!(text[5].starts_with("│one:6379: 2 slots are moving from a:1 to b:1 "), "{text:#?}");
        let text = lines(&drawn(&state, (80, 11))).concat();
        assert!(!text.contains("moving") && text.contains("three:6379"), "no room: {text}");
    }

    /// Regression: it said "0/1 nodes grant, 1 more needed".
    #[test]
    fn a_narrow_terminal_does_not_say_that_nothing_is_granted_where_a_part_is() {
        let mut state = State::default();
        let mut survey = survey(&[]);
        survey.nodes.truncate(1);
        survey.quorum = 1;
        let share = SlotShare { granting: 10_922, ..SlotShare::default() };
        survey.nodes[0].status.as_mut().unwrap().slots = Some(share);
        state.surveyed(survey);
        let title = |state: &State, columns| lines(&drawn(state, (columns, 12)))[0].clone();
        let narrow = title(&state, 60);
        assert!(narrow.contains(" locks are granted in some slots only "), "{narrow}");
        let wide = title(&state, 99);
        assert!(wide.contains(" the only node grants locks in some slots; in the"), "{wide}");
        let mut three = self::survey(&[]);
        three.nodes[1] = state.survey.as_ref().unwrap().nodes[0].clone();
        state.surveyed(three);
        let narrow = title(&state, 60);
        assert!(narrow.contains(" 2/3 nodes grant, 1 in some slots only "), "{narrow}");
    }

    #[test]
    fn typing_a_filter_shows_less_and_escape_never_quits() {
        let mut state = State::default();
        let locks = [("aa", lock("web", 0, 1)), ("ab", lock("web", 0, 2)), ("b", lock("Q", 0, 3))];
        state.surveyed(survey(&locks));
        assert!(lines(&drawn(&state, (80, 20))).concat().contains("lock 1 of 3, most waiters"));
        type_text(&mut state, "/q");
        let text = lines(&drawn(&state, (80, 20)));
        assert!(text.concat().contains("lock 1 of 1 with 'q'"), "a holder in capitals: {text:#?}");
        assert!(text[19].starts_with("filter: q"), "{text:#?}");
        press(&mut state, KeyCode::Backspace);
        type_text(&mut state, "x");
        assert!(lines(&drawn(&state, (80, 20))).concat().contains("no lock with 'x'"));
        assert_eq!(press(&mut state, KeyCode::Esc), Order::GoOn);
        assert!(lines(&drawn(&state, (80, 20))).concat().contains("of 3, most waiters"));
        type_text(&mut state, "/aa");
        press(&mut state, KeyCode::Enter);
        // Back to looking: `d` asks, and is not typed.
        press(&mut state, KeyCode::Char('d'));
        assert_eq!(state.input, Input::Ask(b"aa".to_vec()));
        for _ in 0..3 {
            assert_eq!(press(&mut state, KeyCode::Esc), Order::GoOn);
        }
        assert_eq!((state.input.clone(), state.locks().len()), (Input::Look, 3));
    }

    #[test]
    fn locks_are_sorted_as_asked_and_help_says_how() {
        let mut state = State::default();
        let locks = [("a", lock("x", 0, 1)), ("b", lock("y", 3, 2)), ("c", lock("z", 0, 3))];
        let mut survey = survey(&locks);
        for info in survey.locks.get_mut(&b"c"[..]).unwrap().nodes.iter_mut().flatten() {
            info.left = Some(Duration::from_secs(1));
        }
        state.surveyed(survey);
        let mut seen = Vec::new();
        for _ in 0..5 {
            seen.push(state.locks().iter().map(|(name, _)| name[0] as char).collect::<String>());
            press(&mut state, KeyCode::Char('s'));
        }
        assert_eq!(seen, ["bca", "abc", "cba", "cab", "bca"]);
        press(&mut state, KeyCode::Char('?'));
        for size in [(80, 24), (40, 24)] {
            let text = lines(&drawn(&state, size)).concat();
            assert!(text.contains("select a lock") && text.contains("red:"), "{size:?}: {text}");
        }
        // The help was cut off before the colours.
        let text = lines(&drawn(&state, (40, 12))).join("\n");
        assert!(text.contains("select a lock") && text.contains("red: out of order"), "{text}");
        assert_eq!(press(&mut state, KeyCode::Char('q')), Order::GoOn, "it ends the help");
        assert_eq!(press(&mut state, KeyCode::Char('q')), Order::Quit);
    }

    #[test]
    fn colours_say_what_needs_a_look() {
        let mut state = State::default();
        let mut survey = survey(&[("a", lock("x", 7, 5)), ("b", lock("y", 0, 5))]);
        survey.locks.get_mut(&b"b"[..]).unwrap().nodes[1] = None;
        state.surveyed(survey);
        let buffer = drawn(&state, (100, 20));
        assert_eq!(color(&buffer, "1 of 3 nodes grant"), Color::Red);
        assert_eq!(color(&buffer, "7       2/3"), Color::Yellow, "it has waiters");
        assert_eq!(color(&buffer, "2/3"), Color::Reset, "a quorum holds it");
        assert_eq!(color(&buffer, "1/3"), Color::Yellow, "less than a quorum");
    }

    #[test]
    fn any_size_of_a_terminal_will_do() {
        let mut state = State::default();
        state.surveyed(survey(&[("a", lock("x", 2, 5))]));
        for key in ['d', '?', '/'] {
            press(&mut state, KeyCode::Char(key));
            for width in [1, 2, 10, 40, 300] {
                for height in [1, 2, 5, 9, 60] {
                    drawn(&state, (width, height));
                }
            }
            press(&mut state, KeyCode::Esc);
        }
    }

    #[test]
    fn nothing_that_plays_with_the_terminal_gets_into_a_cell() {
        let mut state = State::default();
        state.surveyed(survey(&[("a\u{202e}b\x1b[2J", lock("x\u{9b}\u{200b}", 2, 5))]));
        // As if a caller had forgotten to escape it.
        state.message = "m\u{202e}\x1b".to_owned();
        state.filter = String::new();
        let text = lines(&drawn(&state, (120, 20))).concat();
        assert!(
            text.contains("a\\u{202e}b\\x1b[2J") && text.contains("x\\u{9b}\\u{200b}"),
            "{text}"
        );
        assert!(text.chars().all(is_plain), "{text:?}");
    }
}
