//! The flag of every command that reads or changes pins.

use std::path::PathBuf;

use clap::Args;

/// Where pins lie.
#[derive(Args, Clone, Debug)]
pub(super) struct PinArgs {
    /// Directory of pins
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "UNLATCH_PIN_DIR",
        default_value = "/sys/fs/bpf/unlatch"
    )]
    pub(super) pin_dir: PathBuf,
}
