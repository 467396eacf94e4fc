//! One screen: who counts, then a line a backend with the course of its requests in flight.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::super::status::{Backend, Status};
use super::history::{History, LOOKS};

const HEADS: [&str; 9] =
    ["backend", "in flight", "awaiting", "streaming", "conns", "drift", "resets", "silent", "first byte"];

/// Draws what was seen last; `first` is the first line shown, kept within what there is.
pub(super) fn draw(frame: &mut Frame<'_>, history: &History, first: &mut usize) {
    let [top, table, bottom] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(2), Constraint::Length(1)])
            .areas(frame.area());
    let Some(status) = &history.now else { return };
    frame.render_widget(Paragraph::new(summary(status)), top);
    backends(frame, table, history, first);
    let order = if history.is_by_load() { "busiest first" } else { "by row" };
    let help =
        format!("q end   s order ({order})   ↑↓ move   -: not followed   ?: some connections cannot be told");
    frame.render_widget(Paragraph::new(help).style(Style::new().fg(Color::DarkGray)), bottom);
}

fn summary(status: &Status) -> Vec<Line<'static>> {
    let routers: Vec<String> =
        status.workers.iter().map(|w| format!("{} (slot {})", w.pid, w.slot)).collect();
    let routers = if routers.is_empty() { "none".to_owned() } else { routers.join(", ") };
    let in_flight: u32 = status.backends.iter().map(|b| b.in_flight).fold(0, u32::saturating_add);
    let here = status.engines.iter().map(|engine| {
        let in_flight = engine.in_flight.map_or_else(|| "-".to_owned(), |n| n.to_string());
        format!("   here at port {}: {in_flight}", engine.port)
    });
    let here: String = here.collect();
    vec![
        Line::from(format!("{}   routers {routers}", status.pins)),
        Line::from(format!("{} backends, {in_flight} requests in flight{here}", status.backends.len())),
    ]
}

fn backends(frame: &mut Frame<'_>, area: Rect, history: &History, first: &mut usize) {
    let all = history.backends();
    *first = (*first).min(all.len().saturating_sub(1));
    let longest = all.iter().map(|b| b.url.len()).max().unwrap_or(0).clamp(7, 40) as u16;
    let numbers = [9, 8, 9, 6, 6, 6, 7, 10];
    let taken = longest + numbers.iter().map(|n| n + 1).sum::<u16>() + 1;
    let bars = usize::from(area.width.saturating_sub(taken)).min(LOOKS);
    let row = |b: &&Backend| {
        let mut cells = cells(b).map(Cell::from).to_vec();
        cells.push(Cell::from(history.bars(&b.url, bars)).style(Style::new().fg(Color::Cyan)));
        let is_odd = b.drift.is_some_and(|d| d != 0);
        Row::new(cells).style(if is_odd { Style::new().fg(Color::Yellow) } else { Style::new() })
    };
    let widths = std::iter::once(Constraint::Length(longest))
        .chain(numbers.map(Constraint::Length))
        .chain([Constraint::Length(bars as u16)]);
    let head = Row::new(HEADS).style(Style::new().add_modifier(Modifier::BOLD));
    let table = Table::new(all.iter().skip(*first).map(row), widths).header(head);
    frame.render_widget(table, area);
}

fn cells(b: &Backend) -> [String; 9] {
    let seconds = |s: Option<f64>| s.map_or_else(|| "-".to_owned(), |s| format!("{s:.2} s"));
    let drift = b.drift.map_or_else(|| "?".to_owned(), |d| format!("{d:+}"));
    [
        b.url.clone(),
        b.in_flight.to_string(),
        b.phase(b.awaiting),
        b.phase(b.streaming),
        b.conns.to_string(),
        drift,
        b.resets.to_string(),
        seconds(b.silent_seconds),
        seconds(b.ttfb_seconds),
    ]
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use router_common::BackendLoad;

    use super::super::super::status::{Engine, example_tests::status};
    use super::super::history::History;
    use crate::account::local::LocalRow;
    use crate::account::view::Counts;

    fn screen(history: &History, width: u16, height: u16, first: &mut usize) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| super::draw(frame, history, first)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn every_backend_has_a_line_and_what_is_unknown_no_number() {
        let mut history = History::default();
        let mut seen = status(&[5, 2]);
        (seen.backends[1].awaiting, seen.backends[1].drift) = (None, None);
        let row = LocalRow { port: 8000, load: BackendLoad { awaiting: 3, ..BackendLoad::ZERO } };
        seen.engines =
            [true, false].map(|requests| Engine::new(&row, Counts { connections: true, requests })).into();
        history.add(seen);
        let text = screen(&history, 120, 8, &mut 0);
        assert!(text.contains("2 backends, 7 requests in flight"), "{text}");
        assert!(text.contains("here at port 8000: 3   here at port 8000: -"), "{text}");
        let line = |name: &str| text.lines().find(|l| l.contains(name)).unwrap().to_owned();
        assert!(line("engine-0").contains(" 5 ") && line("engine-0").contains('▅'), "{text}");
        assert!(line("engine-1").contains(" - ") && line("engine-1").contains(" ? "), "{text}");
    }

    #[test]
    fn any_size_is_drawn_and_moving_stays_within_the_lines() {
        let mut history = History::default();
        history.add(status(&[1; 40]));
        for (width, height) in [(1, 1), (20, 3), (80, 24), (300, 90)] {
            let mut first = 99;
            screen(&history, width, height, &mut first);
            assert_eq!(first, 39);
        }
        assert!(screen(&history, 100, 6, &mut 20).contains("engine-20"));
    }
}
