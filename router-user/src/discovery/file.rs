//! Follows one backends file.

use std::path::Path;

use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::file_watch::FileWatch;
use super::source::SourceId;
use crate::config::backends_file::BYTES_MAX;
use crate::config::{BackendConfig, BackendsFile, read_text};

/// What a source has to say.
#[derive(Debug)]
pub(super) struct News {
    pub(super) source: SourceId,
    /// Its whole list, or why it cannot be used.
    pub(super) list: Result<Vec<BackendConfig>, String>,
}

/// Tells the list at once and each time the content of the file changes, until nobody listens.
pub(super) async fn follow(source: SourceId, file: BackendsFile, tell: mpsc::Sender<News>) {
    let mut watch = FileWatch::new(file.path.clone(), BYTES_MAX);
    loop {
        let list = match watch.changed().await {
            Ok(text) => read(file.clone(), text).await,
            Err(e) => Err(format!("cannot read {}: {e}", file.path.display())),
        };
        if tell.send(News { source, list }).await.is_err() {
            return;
        }
    }
}

/// Where reading the key files that it names may take its time.
async fn read(file: BackendsFile, text: String) -> Result<Vec<BackendConfig>, String> {
    let key = |path: &Path| read_text(path, BYTES_MAX);
    let read = spawn_blocking(move || (file.parse)(&file.path, &text, &key).map_err(|e| e.to_string()));
    read.await.unwrap_or_else(|e| Err(e.to_string()))
}
