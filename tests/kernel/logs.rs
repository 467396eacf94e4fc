//! What the programs log comes out in `tracing`.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

use crate::sandbox::{name, run};
use crate::world::{Backend, account};

/// Keeps what is written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Kept {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[test]
fn records_of_the_programs_are_events_at_debug_in_slot_0_only() {
    run(name!(), |sandbox| {
        let kept = Kept::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .with_writer(kept.clone())
            .finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let account = account(sandbox);
        let second = crate::world::account(sandbox);
        assert!(second.log_reader().is_none(), "the ring has one reader");
        let reader = account.log_reader().unwrap();
        assert!(account.log_reader().is_none());

        let backend = Backend::new(&account, "127.0.0.1");
        drop(backend.connect());
        let expected = [format!("connection to row {} opened", backend.id.index()), "closed".to_owned()];
        let text = || String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let all_there = async {
                while !expected.iter().all(|part| text().contains(part)) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::select! {
                ended = reader.run() => panic!("the reader ended: {ended:?}"),
                () = all_there => {}
                () = tokio::time::sleep(Duration::from_secs(2)) => panic!("not within 2 s: {}", text()),
            }
        });
        let line = text();
        let line = line.lines().find(|line| line.contains(&expected[0])).unwrap();
        assert!(line.contains("DEBUG unlatch::bpf"), "{line}");
    });
}
