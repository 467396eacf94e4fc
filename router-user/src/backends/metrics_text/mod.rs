//! What an engine's `/metrics` text says of its load. Pure: bytes in pieces and a time in, a [`Report`] out.
//!
//! It goes from line to line and looks closer only at those of names it knows ([`dialect`]), whole names only, so that
//! `vllm:num_requests_waiting_by_reason` is not taken for `vllm:num_requests_waiting`. Lines of several engines behind
//! one address are added up; shares are averaged. A name that is not there is unknown, never zero; a value that is no
//! count (NaN, infinite, negative, a fraction) makes its signal unknown too. Legal but unusual text is read: blanks,
//! timestamps, exemplars, no newline at the end. Keeps one line of the text at most, whatever its size.

mod dialect;
mod fold;
mod names;
mod sample;

pub use dialect::Engine;
pub use names::{Nearest, nearest};

use dialect::{Gauge, Line, look};
use fold::{Mean, Same, Sum};
use memchr::memchr;
use names::Names;
use router_policy::{Nanos, Report, Signal, Why};
use sample::{Sample, sample};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a text, unpacked, that are read at most.
pub const TEXT_BYTES_MAX: usize = 16 << 20;

/// Bytes of a line at most; a longer line counts as malformed if it has a wanted name.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// The text is longer than [`TEXT_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the text is too large")]
pub struct TooLarge;

/// What kind of text it is, by its first character.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Nothing but blanks.
    #[default]
    Empty,
    /// A page for people: a login, an error.
    Html,
    /// JSON, as `trtllm-serve` has it at `/metrics`.
    Json,
    /// Anything else.
    Text,
}

/// What a text says.
#[derive(Clone, Debug, Default)]
pub struct Parsed {
    /// The gauges; `seats` is left unheard.
    pub report: Report,
    /// Whose they are.
    pub engine: Option<Engine>,
    /// Whether every engine behind the address is awake, where the text says it.
    pub awake: Option<bool>,
    /// Unix time at which the process started, where the text says it: another one means that its cache is gone.
    pub process_start_seconds: Option<f64>,
    /// Tokens of prompts that it has counted, where the text says it: fewer than before mean the same.
    pub counted: Option<f64>,
    /// What kind of text it is.
    pub kind: Kind,
    /// Names of samples, where they were asked for.
    pub names: Vec<String>,
}

/// Reads a whole text that was true at `at`.
#[must_use]
pub fn parse(text: &[u8], at: Nanos) -> Parsed {
    let mut reader = Reader::new(false);
    match reader.feed(text) {
        Ok(()) => reader.finish(at, None),
        Err(TooLarge) => Parsed::default(),
    }
}

/// Reads a text as it comes. O(bytes); memory is one line at most.
#[derive(Debug, Default)]
pub struct Reader {
    bytes: usize,
    /// The line that has begun, up to one byte more than is read.
    carry: Vec<u8>,
    kind: Kind,
    loads: [Load; Engine::ALL.len()],
    process_start_seconds: Option<f64>,
    names: Option<Names>,
}

/// What the lines of one engine come to.
#[derive(Debug, Default)]
struct Load {
    running: Sum,
    waiting: Sum,
    swapped: Sum,
    kv_use: Mean,
    kv_use_old: Mean,
    pool_tokens: Sum,
    pool_blocks: Sum,
    block_tokens: Same,
    /// Whether any says that it is not awake.
    awake: Option<bool>,
    /// Sum of its counters.
    counted: Option<f64>,
    /// Of all lines of the engine, in their order.
    fingerprint: u64,
}

impl Reader {
    /// At the beginning of a text. `with_names` also keeps some of the names it has, for people.
    #[must_use]
    pub fn new(with_names: bool) -> Self {
        Self { names: with_names.then(Names::default), ..Self::default() }
    }

    /// The next piece, cut anywhere.
    ///
    /// # Errors
    /// The text has become too long; nothing more is read.
    pub fn feed(&mut self, mut piece: &[u8]) -> Result<(), TooLarge> {
        self.bytes = self.bytes.saturating_add(piece.len());
        if self.bytes > TEXT_BYTES_MAX {
            return Err(TooLarge);
        }
        if !self.carry.is_empty() {
            let end = memchr(b'\n', piece);
            self.keep(&piece[..end.unwrap_or(piece.len())]);
            let Some(end) = end else { return Ok(()) };
            piece = &piece[end + 1..];
            self.carried();
        }
        while let Some(end) = memchr(b'\n', piece) {
            self.line(&piece[..end.min(LINE_BYTES_MAX + 1)]);
            piece = &piece[end + 1..];
        }
        self.keep(piece);
        Ok(())
    }

    fn keep(&mut self, part: &[u8]) {
        let room = (LINE_BYTES_MAX + 1).saturating_sub(self.carry.len());
        self.carry.extend_from_slice(&part[..part.len().min(room)]);
    }

    fn carried(&mut self) {
        let line = std::mem::take(&mut self.carry);
        self.line(&line);
        self.carry = line;
        self.carry.clear();
    }

    /// The text is whole, and was true at `at`. Only the gauges of `engine` count, if it is known.
    #[must_use]
    pub fn finish(mut self, at: Nanos, engine: Option<Engine>) -> Parsed {
        self.carried();
        let is_there = |e: &Engine| self.loads[*e as usize].is_there();
        let is_whole = |e: &Engine| self.loads[*e as usize].is_whole();
        let found =
            || Engine::ALL.into_iter().find(is_whole).or_else(|| Engine::ALL.into_iter().find(is_there));
        let engine = match self.kind {
            Kind::Text => engine.filter(is_there).or_else(|| if engine.is_none() { found() } else { None }),
            Kind::Empty | Kind::Html | Kind::Json => None,
        };
        let nothing = Load::default();
        let load = engine.map_or(&nothing, |e| &self.loads[e as usize]);
        Parsed {
            report: load.report(at),
            engine,
            awake: load.awake,
            process_start_seconds: self.process_start_seconds,
            counted: load.counted,
            kind: self.kind,
            names: self.names.map(Names::into_vec).unwrap_or_default(),
        }
    }

    #[inline]
    fn line(&mut self, line: &[u8]) {
        let line = match line.first() {
            None | Some(b'#') if self.kind == Kind::Text => return,
            Some(b) if b.is_ascii_whitespace() => line.trim_ascii_start(),
            _ => line,
        };
        if self.kind == Kind::Empty {
            self.kind = match line.first() {
                None => return,
                Some(b'<') => Kind::Html,
                Some(b'{' | b'[') => Kind::Json,
                Some(_) => Kind::Text,
            };
        }
        match look(line) {
            Line::Wanted(engine, gauge, rest) => {
                let load = &mut self.loads[engine as usize];
                load.mark(line);
                let sample = if line.len() > LINE_BYTES_MAX { None } else { sample(rest) };
                load.take(engine, gauge, sample.as_ref());
            }
            Line::Of(engine) => self.loads[engine as usize].mark(line),
            Line::ProcessStart(rest) => {
                let start = sample(rest).and_then(|s| s.value.parse().ok());
                self.process_start_seconds = start.filter(|v: &f64| v.is_finite());
            }
            Line::Other => {}
        }
        if let Some(names) = &mut self.names {
            names.see(line);
        }
    }
}

impl Load {
    #[inline]
    fn mark(&mut self, line: &[u8]) {
        self.fingerprint = xxh3_64_with_seed(line, self.fingerprint);
    }

    fn take(&mut self, engine: Engine, gauge: Gauge, sample: Option<&Sample<'_>>) {
        let count = || sample.and_then(Sample::count);
        let share = || sample.and_then(Sample::share);
        // SGLang's processes of one data parallel rank can each tell of the same requests.
        let rank = || {
            let sample = sample.filter(|_| engine == Engine::Sglang)?;
            Some(sample.number("dp_rank").unwrap_or(u64::MAX))
        };
        let add = |sum: &mut Sum, value| match rank() {
            Some(rank) => sum.add_at(rank, value),
            None => sum.add(value),
        };
        match gauge {
            Gauge::Running => add(&mut self.running, count()),
            Gauge::Waiting => add(&mut self.waiting, count()),
            Gauge::Swapped => self.swapped.add(count()),
            Gauge::KvUse => self.kv_use.add(share()),
            Gauge::KvUseOld => self.kv_use_old.add(share()),
            Gauge::PoolTokens => add(&mut self.pool_tokens, count().filter(|n| *n > 0)),
            Gauge::CacheInfo => self.pool_tokens.add(sample.and_then(cache_tokens)),
            Gauge::PoolBlocks => self.pool_blocks.add(count().filter(|n| *n > 0)),
            Gauge::BlockTokens => self.block_tokens.add(count().filter(|n| *n > 0)),
            Gauge::Counted => {
                let value = sample.and_then(|s| s.value.parse().ok()).filter(|v: &f64| v.is_finite());
                self.counted = value.map(|value| self.counted.unwrap_or_default() + value).or(self.counted);
            }
            Gauge::SleepState => {
                if let Some(sample) = sample.filter(|s| s.is("sleep_state", "awake"))
                    && let Some(awake) = sample.count()
                {
                    self.awake = Some(self.awake.unwrap_or(true) && awake > 0);
                }
            }
            Gauge::TritonRequests => match sample {
                None => self.running.add(None),
                Some(s) if s.is("request_type", "scheduled") => self.running.add(s.count()),
                Some(s) if s.is("request_type", "waiting") => self.waiting.add(s.count()),
                Some(_) => {}
            },
            Gauge::TritonBlocks => match sample {
                Some(s) if s.is("kv_cache_block_type", "fraction") => self.kv_use.add(s.share()),
                Some(s) if s.is("kv_cache_block_type", "max") => self.pool_blocks.add(s.count()),
                Some(s) if s.is("kv_cache_block_type", "tokens_per") => self.block_tokens.add(s.count()),
                _ => {}
            },
        }
    }

    const fn is_there(&self) -> bool {
        self.running.is_there() || self.waiting.is_there() || self.fingerprint != 0
    }

    const fn is_whole(&self) -> bool {
        self.running.is_there() && self.waiting.is_there()
    }

    fn report(&self, at: Nanos) -> Report {
        let kv_use = if self.kv_use.is_there() { &self.kv_use } else { &self.kv_use_old };
        Report {
            running: self.running.count(&Sum::default(), at),
            waiting: self.waiting.count(&self.swapped, at),
            kv_use: kv_use.signal(at),
            kv_tokens: self.pool(at),
            seats: Signal::default(),
            fingerprint: (self.fingerprint != 0).then_some(self.fingerprint),
        }
    }

    fn pool(&self, at: Nanos) -> Signal<u64> {
        if self.pool_tokens.is_there() || !self.pool_blocks.is_there() {
            return self.pool_tokens.signal(at);
        }
        let tokens = |blocks: u64| blocks.checked_mul(self.block_tokens.value()?).filter(|n| *n > 0);
        match self.pool_blocks.signal(at) {
            Signal::Known { value, .. } => {
                tokens(value).map_or(Signal::Unknown(Why::Missing), |tokens| Signal::known(tokens, at))
            }
            unknown @ Signal::Unknown(_) => unknown,
        }
    }
}

/// KV pool of one vLLM engine; blocks say `None` before the pool is made.
fn cache_tokens(info: &Sample<'_>) -> Option<u64> {
    let product = || info.number("num_gpu_blocks")?.checked_mul(info.number("block_size")?);
    info.number("kv_cache_size_tokens").or_else(product).filter(|tokens| *tokens > 0)
}

#[cfg(test)]
mod tests;
