//! `unlatch top`: what kernel and routers count per backend, live in the terminal, read from the pins; needs no router.
//!
//! `history` keeps what was seen, `screen` draws it. Invariant: the terminal is as it was when the command ends,
//! however it ends.

mod history;
mod screen;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use self::history::History;
use super::output;
use super::pins::PinArgs;
use super::status::{self, UNAVAILABLE};
use crate::account::KernelError;
use crate::account::suspect::SUSPECT_AFTER;
use crate::cli::EXIT_USAGE;
use crate::config::values::duration;

/// What each backend has in flight, live; q ends it, arrows move
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// Time between two looks, 100 ms to a minute
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Print a JSON line a look instead, until the reader has enough
    #[arg(long)]
    json: bool,
    /// End after so many looks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    looks: Option<u64>,
    #[command(flatten)]
    pins: PinArgs,
}

fn interval(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(100)..=Duration::from_secs(60))
}

/// Shows until it is told to end; exits 69 if nothing readable is pinned.
///
/// # Errors
/// The terminal or the output cannot be written.
pub fn run(args: &TopArgs) -> anyhow::Result<ExitCode> {
    let looks = args.looks.unwrap_or(u64::MAX);
    if args.json {
        return lines(args, looks);
    }
    if !io::stdout().is_terminal() {
        output::tell("unlatch top: standard output is no terminal; --json prints lines");
        return Ok(ExitCode::from(EXIT_USAGE));
    }
    let mut history = History::default();
    if let Err(error) = look(args, &mut history) {
        return Ok(refused(&error));
    }
    let mut terminal = ratatui::init();
    let ended = watch(args, looks, &mut terminal, &mut history);
    ratatui::restore();
    match ended? {
        None => Ok(ExitCode::SUCCESS),
        Some(error) => Ok(refused(&error)),
    }
}

fn refused(error: &KernelError) -> ExitCode {
    output::tell(format_args!("unlatch top: {error}"));
    ExitCode::from(UNAVAILABLE)
}

fn look(args: &TopArgs, history: &mut History) -> Result<(), KernelError> {
    history.add(status::read(&args.pins.pin_dir, SUSPECT_AFTER)?);
    Ok(())
}

fn lines(args: &TopArgs, looks: u64) -> anyhow::Result<ExitCode> {
    for n in 0..looks {
        if n > 0 {
            std::thread::sleep(args.interval);
        }
        match status::read(&args.pins.pin_dir, SUSPECT_AFTER) {
            Ok(status) => {
                if !output::goes_on(&(serde_json::to_string(&status)? + "\n"))? {
                    break;
                }
            }
            Err(error) => return Ok(refused(&error)),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Draws and looks in turns; the pins' end ends it too.
fn watch(
    args: &TopArgs,
    looks: u64,
    terminal: &mut ratatui::DefaultTerminal,
    history: &mut History,
) -> anyhow::Result<Option<KernelError>> {
    let (mut seen, mut first) = (1, 0);
    let mut next = Instant::now() + args.interval;
    while seen <= looks {
        terminal.draw(|frame| screen::draw(frame, history, &mut first))?;
        if event::poll(next.saturating_duration_since(Instant::now()))? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(None),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(None),
                    KeyCode::Down | KeyCode::Char('j') => first += 1,
                    KeyCode::Up | KeyCode::Char('k') => first = first.saturating_sub(1),
                    KeyCode::Char('s') => history.sort(),
                    _ => {}
                },
                _ => {}
            }
            continue;
        }
        if let Err(error) = look(args, history) {
            return Ok(Some(error));
        }
        seen += 1;
        next = Instant::now() + args.interval;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::{Duration, interval};

    #[test]
    fn looks_are_neither_a_busy_loop_nor_asleep() {
        assert_eq!(interval("250ms").unwrap(), Duration::from_millis(250));
        assert!(interval("1ms").is_err() && interval("2m").is_err() && interval("soon").is_err());
    }
}
