//! What `lockmod top` looks like.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState, Wrap};

use super::super::rows::{self, Health, LOCK_COLUMNS, NODE_COLUMNS};
use super::state::State;
use crate::client::Survey;

const KEYS: &str = "q quit   ↑↓ select   d take the lock from its holder   r refresh";
/// Widths that fit what is usual; names and states share what is left.
const NODE_WIDTHS: [Constraint; 7] = [
    Constraint::Fill(2),
    Constraint::Length(8),
    Constraint::Fill(3),
    Constraint::Length(9),
    Constraint::Length(11),
    Constraint::Length(17),
    Constraint::Length(8),
];
const LOCK_WIDTHS: [Constraint; 7] = [
    Constraint::Fill(1),
    Constraint::Fill(1),
    Constraint::Length(17),
    Constraint::Length(10),
    Constraint::Length(10),
    Constraint::Length(8),
    Constraint::Length(6),
];

pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let nodes = state.survey.as_ref().map_or(1, |survey| survey.nodes.len());
    let nodes = u16::try_from(nodes + 3).unwrap_or(u16::MAX);
    let parts = [Constraint::Max(nodes), Constraint::Min(4), Constraint::Length(1)];
    let [top, middle, bottom] = Layout::vertical(parts).areas(frame.area());
    match &state.survey {
        Some(survey) => {
            draw_nodes(frame, top, survey);
            draw_locks(frame, middle, survey, state.selection());
        }
        None => frame.render_widget(Paragraph::new("asking the nodes ..."), top),
    }
    let footer = if state.message.is_empty() { KEYS } else { &state.message };
    frame.render_widget(Paragraph::new(footer).dim(), bottom);
    if let Some(name) = &state.asked {
        draw_question(frame, name);
    }
}

fn draw_nodes(frame: &mut Frame<'_>, area: Rect, survey: &Survey) {
    let row = |node| {
        let (health, cells) = rows::node(survey, node);
        let color = match health {
            Health::Good => Color::Green,
            Health::Abstains => Color::Yellow,
            Health::Bad => Color::Red,
        };
        let is_state = |column: usize| column == 2;
        let cells = cells.into_iter().enumerate().map(|(column, cell)| {
            let style = if is_state(column) { Style::new().fg(color) } else { Style::new() };
            Cell::new(cell).style(style)
        });
        Row::new(cells)
    };
    let title = format!(" {} ", rows::quorum(survey));
    let color = if survey.margin() < 0 { Color::Red } else { Color::Reset };
    let table = Table::new(survey.nodes.iter().map(row), NODE_WIDTHS)
        .header(Row::new(NODE_COLUMNS).bold())
        .block(Block::bordered().title(Line::from(title).fg(color)));
    frame.render_widget(table, area);
}

fn draw_locks(frame: &mut Frame<'_>, area: Rect, survey: &Survey, selection: Option<usize>) {
    let locks = rows::busy_locks(survey);
    let more = if survey.is_cut { " or more" } else { "" };
    let title = format!(" {}{more} locks held or waited for ", locks.len());
    let rows = locks.iter().map(|(name, lock)| Row::new(rows::lock(survey, name, lock)));
    let table = Table::new(rows, LOCK_WIDTHS)
        .header(Row::new(LOCK_COLUMNS).bold())
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(Block::bordered().title(title));
    let mut place = TableState::new().with_selected(selection);
    frame.render_stateful_widget(table, area, &mut place);
}

fn draw_question(frame: &mut Frame<'_>, name: &[u8]) {
    let [area] = Layout::horizontal([Constraint::Max(64)])
        .flex(ratatui::layout::Flex::Center)
        .areas(frame.area());
    let [area] =
        Layout::vertical([Constraint::Max(7)]).flex(ratatui::layout::Flex::Center).areas(area);
    let text = Text::from(format!(
        "Take '{}' from its holder? It is deleted on all nodes. The holder is not told, and may \
         go on working: only the fence protects you then.\n\ny: yes   any other key: no",
        rows::shown(name)
    ));
    let question = Paragraph::new(text).wrap(Wrap { trim: true }).block(Block::bordered());
    frame.render_widget(Clear, area);
    frame.render_widget(question, area);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};
    use ratatui::{Terminal, buffer::Buffer};

    use super::super::state::Order;
    use super::*;
    use crate::client::protocol::LockInfo;
    use crate::client::{LockSurvey, NodeReport, NodeStatus, NodeSurvey, Vote};
    use crate::engine::Fence;

    fn node(name: &str, status: Result<NodeStatus, Vote>) -> NodeSurvey {
        NodeSurvey { node: Arc::from(name), status }
    }

    fn status(highest_fence: u64, quarantine_left: Option<Duration>) -> NodeStatus {
        let fields = [("locks", "4"), ("grants", "17")];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
        NodeStatus {
            is_master: true,
            quarantine_left,
            highest_fence: Fence::new(highest_fence).unwrap(),
            fields: BTreeMap::from(fields),
        }
    }

    fn lock(label: &str, waiters: u64, held_for: u64) -> LockSurvey {
        let info = LockInfo {
            state: "held".to_owned(),
            fence: Fence::new(7).unwrap(),
            left: Some(Duration::from_secs(20)),
            label: Some(label.to_owned()),
            held_for: Some(Duration::from_secs(held_for)),
            waiters,
            first_waiting: None,
            quarantine_left: None,
        };
        LockSurvey { nodes: vec![Some(info.clone()), Some(info), None] }
    }

    fn survey(locks: &[(&str, LockSurvey)]) -> Survey {
        Survey {
            nodes: vec![
                node("one:6379", Ok(status(90, None))),
                node("two:6379", Ok(status(80, Some(Duration::from_millis(1_500))))),
                node("three:6379", Err(Vote::TimedOut)),
            ],
            quorum: 2,
            locks: locks
                .iter()
                .map(|(name, lock)| (name.as_bytes().to_vec(), lock.clone()))
                .collect(),
            is_cut: false,
        }
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
        assert!(lines[0].contains("1 of 3 nodes grant locks, 2 are a quorum: no lock can be"));
        assert_eq!(lines[0].chars().count(), 110);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines[2])[..3], ["│one:6379", "master", "grants"]);
        assert!(lines[3].contains("in quarantine for 1.5 s"));
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
        assert!(lines[place(" z ")].contains("50.0 s") && lines[place(" z ")].contains("2/3"));
    }

    #[test]
    fn a_lock_is_taken_only_after_a_yes_to_its_own_name() {
        let mut state = State::default();
        assert_eq!(press(&mut state, KeyCode::Char('d')), Order::GoOn);
        assert_eq!(state.asked, None, "there is nothing to take");
        state.surveyed(survey(&[("a", lock("x", 2, 5)), ("b", lock("y", 1, 1))]));
        press(&mut state, KeyCode::Down);
        press(&mut state, KeyCode::Char('d'));
        // Whatever comes first meanwhile, the question is about the lock that was selected.
        state.surveyed(survey(&[("a", lock("x", 0, 5)), ("b", lock("y", 1, 1))]));
        assert!(lines(&drawn(&state, (80, 20))).concat().contains("Take 'b' from its holder?"));
        assert_eq!(press(&mut state, KeyCode::Enter), Order::GoOn);
        assert_eq!(press(&mut state, KeyCode::Char('y')), Order::GoOn);
        press(&mut state, KeyCode::Char('d'));
        let order = press(&mut state, KeyCode::Char('y'));
        assert_eq!(order, Order::ForceRelease(b"b".to_vec()));
        let report = |vote| NodeReport { node: Arc::from("n"), vote };
        state.force_released(b"b", &[report(Vote::Confirmed), report(Vote::TimedOut)]);
        let lines = lines(&drawn(&state, (80, 20)));
        assert!(lines[19].starts_with("'b' was deleted on 1 of 2 nodes; n: timed out"));
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

    #[test]
    fn any_size_of_a_terminal_will_do() {
        let mut state = State::default();
        state.surveyed(survey(&[("a", lock("x", 2, 5))]));
        press(&mut state, KeyCode::Char('d'));
        for width in [1, 2, 10, 40, 300] {
            for height in [1, 2, 5, 9, 60] {
                drawn(&state, (width, height));
            }
        }
    }
}
