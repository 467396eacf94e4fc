//! `unlatch check`: validates a configuration file without starting anything.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cli::{EXIT_USAGE, read_file};
use crate::config::resolve::{Host, resolve};
use crate::config::{Config, ConfigError};

/// Arguments of `unlatch check`.
#[derive(Clone, Debug, clap::Args)]
pub struct CheckArgs {
    /// The TOML file.
    pub file: PathBuf,
}

/// Checks the file: a summary and 0, or a message with file, line and key and 64. Flags and environment of `serve`
/// are left out of account.
#[must_use]
pub fn run(args: &CheckArgs) -> ExitCode {
    match check(&args.file) {
        Ok(config) => {
            // A reader that closed the pipe has seen enough.
            let _ = writeln!(std::io::stdout(), "{}: {}", args.file.display(), summary(&config));
            ExitCode::SUCCESS
        }
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "{e}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}

fn check(file: &Path) -> Result<Config, ConfigError> {
    resolve(&read_file(file)?, &Host::this())
}

fn summary(config: &Config) -> String {
    let backends = match config.backends.len() {
        1 => "1 backend".to_owned(),
        n => format!("{n} backends"),
    };
    let backends = match config.backends_files.len() {
        0 => backends,
        1 => format!("{backends} and 1 file of them"),
        n => format!("{backends} and {n} files of them"),
    };
    format!("ok: {backends}, policy {}, listening on {}", config.policy.policy.as_str(), config.listen)
}

#[cfg(test)]
mod tests {
    use super::{check, summary};

    fn fixture(name: &str) -> std::path::PathBuf {
        format!("{}/../tests/fixtures/config/{name}", env!("CARGO_MANIFEST_DIR")).into()
    }

    #[test]
    fn a_good_file_is_summed_up() {
        let config = check(&fixture("good.toml")).unwrap();
        assert_eq!(summary(&config), "ok: 2 backends, policy prefix-threshold, listening on 127.0.0.1:8001");
    }

    #[test]
    fn files_of_backends_are_checked_too() {
        let dir = tempfile::tempdir().unwrap();
        let (main, list) = (dir.path().join("u.toml"), dir.path().join("b.yaml"));
        std::fs::write(&main, format!("backends-file = [{list:?}]\n")).unwrap();
        assert!(check(&main).unwrap_err().to_string().starts_with(&format!("{}:1: ", main.display())));
        std::fs::write(&list, "- http://10.0.0.1:8000\n").unwrap();
        assert!(summary(&check(&main).unwrap()).starts_with("ok: 0 backends and 1 file of them, "));
        std::fs::write(&list, "- http://10.0.0.1:8000\n- url: http://b\n  wait: 1\n").unwrap();
        let e = check(&main).unwrap_err().to_string();
        assert!(e.starts_with(&format!("{}:3: entry 2: wait: ", list.display())), "{e}");
    }

    #[test]
    fn a_bad_file_is_named_with_line_and_key() {
        for (name, end) in [
            ("unknown_key.toml", "unknown_key.toml:3: shutdown-deadlin: no such key"),
            ("bad_value.toml", "bad_value.toml:2: scrape-interval: `10` lacks a unit (ms, s, m, h)"),
            (
                "bad_backend.toml",
                "bad_backend.toml:4: backend: max-num-seqs: `many` is no whole number from 1 to 4294967295",
            ),
        ] {
            let e = check(&fixture(name)).unwrap_err().to_string();
            assert!(e.ends_with(end), "{e}");
        }
    }
}
