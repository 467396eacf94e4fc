//! What a step costs on one kind of hardware with one model: constants and one formula.
//!
//! The constants were fitted to measured GEMM, attention and all-reduce kernels summed over layers. Against 42
//! measured end-to-end rows (Llama-3.1-8B on H100) the time per output token is off by 4.9 % on average.
//! What the model leaves out: network, tokeniser, sampling and Python time, and any step overlap.

use std::str::FromStr;

use super::time::Nanos;

/// Constants of one model on one kind of hardware. Times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// The name `--profile` takes.
    pub name: &'static str,
    /// Fixed cost of a step.
    pub t0_ms: f64,
    /// Memory-bound floor of the linear layers: reading the weights once.
    pub g0_ms: f64,
    /// Growth of that floor with each token.
    pub g1_ms: f64,
    /// Compute-bound line of the linear layers: its value at no token.
    pub c0_ms: f64,
    /// Growth of the compute-bound line with each token.
    pub c_ms: f64,
    /// Prefill attention, for each pair of a new token and a token before it.
    pub alpha_ms: f64,
    /// Decode attention, for each token of context read.
    pub beta_ms: f64,
    /// KV blocks of 16 tokens that the memory holds beside the weights.
    pub num_gpu_blocks: u32,
    /// Default token budget of a step.
    pub max_num_batched_tokens: u32,
}

impl Profile {
    /// Llama-class 8B in bf16 on one H100 80 GB.
    pub const H100_8B: Self = Self {
        name: "h100-8b",
        t0_ms: 1.9,
        g0_ms: 5.45,
        g1_ms: 0.0036,
        c0_ms: 0.0,
        c_ms: 0.0178,
        alpha_ms: 8.7e-7,
        beta_ms: 4.7e-5,
        num_gpu_blocks: 27_000,
        max_num_batched_tokens: 8192,
    };
    /// The same model on one A100 80 GB.
    pub const A100_8B: Self = Self {
        name: "a100-8b",
        t0_ms: 2.7,
        g0_ms: 9.7,
        g1_ms: 0.015,
        c0_ms: 3.2,
        c_ms: 0.057,
        alpha_ms: 3.0e-6,
        beta_ms: 8.3e-5,
        num_gpu_blocks: 27_000,
        max_num_batched_tokens: 2048,
    };
    /// Llama-class 70B in bf16 on four H100 80 GB, tensor parallel.
    pub const H100_70B_TP4: Self = Self {
        name: "h100-70b-tp4",
        t0_ms: 3.0,
        g0_ms: 14.0,
        g1_ms: 0.034,
        c0_ms: 2.0,
        c_ms: 0.0655,
        alpha_ms: 1.05e-6,
        beta_ms: 3.0e-5,
        num_gpu_blocks: 26_600,
        max_num_batched_tokens: 8192,
    };
    /// The same model on four A100 80 GB.
    pub const A100_70B_TP4: Self = Self {
        name: "a100-70b-tp4",
        t0_ms: 3.7,
        g0_ms: 26.0,
        g1_ms: 0.075,
        c0_ms: 22.0,
        c_ms: 0.165,
        alpha_ms: 3.9e-6,
        beta_ms: 6.0e-5,
        num_gpu_blocks: 26_600,
        max_num_batched_tokens: 2048,
    };
    /// Every profile, the default first.
    pub const ALL: [Self; 4] = [Self::H100_8B, Self::A100_8B, Self::H100_70B_TP4, Self::A100_70B_TP4];

    /// How long a step with this work takes; at least one nanosecond, so that time always moves.
    #[must_use]
    pub fn step_time(&self, work: &StepWork) -> Nanos {
        let tokens = f64::from(work.tokens);
        let linear = (self.g0_ms + self.g1_ms * tokens).max(self.c0_ms + self.c_ms * tokens);
        let attention = self.alpha_ms * work.prefill_pairs + self.beta_ms * work.decode_context;
        Nanos(Nanos::from_ms_f64(self.t0_ms + linear + attention).0.max(1))
    }
}

/// No profile has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown profile '{0}', use one of h100-8b, a100-8b, h100-70b-tp4, a100-70b-tp4")]
pub struct UnknownProfile(String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|p| p.name == name).ok_or_else(|| UnknownProfile(name.to_owned()))
    }
}

/// What one step computes, in the terms of the cost formula.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepWork {
    /// Tokens computed in the step, prefill and decode.
    pub tokens: u32,
    /// Sum over prefill chunks of `q * (k + q / 2)`, with q new tokens after k computed ones.
    pub prefill_pairs: f64,
    /// Sum over decodes of the tokens of context they read.
    pub decode_context: f64,
}

impl StepWork {
    /// Adds a prefill chunk of `new` tokens after `prior` computed ones.
    pub fn add_prefill(&mut self, new: u32, prior: u32) {
        self.tokens += new;
        self.prefill_pairs += f64::from(new) * (f64::from(prior) + f64::from(new) / 2.0);
    }

    /// Adds a decode of one token that reads `context` tokens.
    pub fn add_decode(&mut self, context: u32) {
        self.tokens += 1;
        self.decode_context += f64::from(context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_near(what: &str, got_ms: f64, want_ms: f64, share: f64) {
        let off = (got_ms - want_ms).abs() / want_ms;
        assert!(off <= share, "{what}: {got_ms:.2} ms, measured {want_ms} ms, off by {:.1} %", off * 100.0);
    }

    fn prefill_ms(profile: &Profile, tokens: u32) -> f64 {
        let mut work = StepWork::default();
        work.add_prefill(tokens, 0);
        profile.step_time(&work).as_ms_f64()
    }

    fn decode_ms(profile: &Profile, batch: u32, context: u32) -> f64 {
        let mut work = StepWork::default();
        for _ in 0..batch {
            work.add_decode(context);
        }
        profile.step_time(&work).as_ms_f64()
    }

    #[test]
    fn decode_steps_at_2k_context_match_the_measured_table_within_two_percent() {
        let table = [
            (Profile::H100_8B, [7.4, 8.9, 13.7]),
            (Profile::A100_8B, [12.6, 15.4, 24.2]),
            (Profile::H100_70B_TP4, [17.1, 18.5, 23.1]),
            (Profile::A100_70B_TP4, [29.9, 32.9, 43.7]),
        ];
        for (profile, want) in table {
            for (batch, want_ms) in [1, 16, 64].into_iter().zip(want) {
                let what = format!("{} decode of {batch}", profile.name);
                assert_near(&what, decode_ms(&profile, batch, 2048), want_ms, 0.02);
            }
        }
    }

    /// The A100 fits weigh long contexts (prior tokens) more than a first chunk, and overestimate the latter.
    #[test]
    fn an_8k_prefill_alone_matches_the_measured_table() {
        for (profile, want_ms, share) in [
            (Profile::H100_8B, 177.0, 0.02),
            (Profile::H100_70B_TP4, 575.0, 0.02),
            (Profile::A100_8B, 537.0, 0.07),
            (Profile::A100_70B_TP4, 1440.0, 0.05),
        ] {
            assert_near(profile.name, prefill_ms(&profile, 8192), want_ms, share);
        }
    }

    #[test]
    fn a_chunk_pays_for_the_tokens_before_it() {
        let mut halves = [StepWork::default(), StepWork::default()];
        halves[0].add_prefill(4096, 0);
        halves[1].add_prefill(4096, 4096);
        let mut whole = StepWork::default();
        whole.add_prefill(8192, 0);
        assert_eq!(halves[0].prefill_pairs + halves[1].prefill_pairs, whole.prefill_pairs);
    }

    #[test]
    fn every_profile_is_found_by_its_name_and_no_other() {
        for profile in Profile::ALL {
            assert_eq!(profile.name.parse(), Ok(profile));
        }
        let error = "h200".parse::<Profile>().unwrap_err().to_string();
        assert!(
            Profile::ALL.iter().all(|p| error.contains(p.name)),
            "the message names every profile: {error}"
        );
    }
}
