//! The path of a chain through the runs, as far as it goes.

use super::run::{RUN_BLOCKS, RunId};

/// A run that the chain passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) run: RunId,
    /// Blocks of the chain up to the end of the run; of the last run, up to where they part.
    pub(super) end: u32,
}

/// The runs that a chain passes, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Path(pub(super) Vec<Step>);

impl Path {
    /// Blocks of the chain that are in runs.
    pub(super) fn matched(&self) -> usize {
        self.start_of(self.0.len())
    }

    /// Blocks of the chain before a step.
    pub(super) fn start_of(&self, step: usize) -> usize {
        step.checked_sub(1).map_or(0, |before| self.0[before].end as usize)
    }

    /// Steps that hold so many blocks, the last of them perhaps more.
    pub(super) fn steps_of(&self, blocks: usize) -> usize {
        self.0.partition_point(|step| (step.end as usize) < blocks) + usize::from(blocks > 0)
    }

    /// The step that holds the last of so many blocks, and how many of these are of its run.
    pub(super) fn last_of(&self, blocks: usize) -> Option<(usize, usize)> {
        let step = self.steps_of(blocks).checked_sub(1)?;
        (step < self.0.len()).then(|| (step, blocks - self.start_of(step)))
    }

    /// Runs and marks that it takes at most to hold `wanted` blocks of the chain, from `held` on.
    pub(super) fn places(&self, held: usize, wanted: usize) -> usize {
        let steps = self.steps_of(wanted.min(self.matched())) - self.steps_of(held);
        steps + wanted.saturating_sub(self.matched()).div_ceil(RUN_BLOCKS)
    }

    /// How many blocks can be held with so many of them.
    pub(super) fn within(&self, held: usize, places: usize) -> usize {
        let steps = self.steps_of(held).saturating_add(places);
        match steps.checked_sub(self.0.len()) {
            Some(new) => self.matched().saturating_add(new.saturating_mul(RUN_BLOCKS)),
            None => self.start_of(steps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Path, Step};

    #[test]
    fn what_fits_into_places_takes_no_more_of_them() {
        let path = Path([3, 11, 13].map(|end| Step { run: 0, end }).to_vec());
        for held in 0..=13 {
            for places in 0..8 {
                let fitting = path.within(held, places);
                let needs = path.places(held, fitting.max(held));
                assert!(needs <= places, "{fitting} blocks from {held} take {needs} of {places} places");
                assert!(
                    path.places(held, fitting.max(held) + 1) > places,
                    "{fitting} from {held}, {places} places"
                );
            }
        }
    }

    #[test]
    fn the_last_step_of_some_blocks_is_the_one_that_holds_the_last() {
        let path = Path([3, 11].map(|end| Step { run: 0, end }).to_vec());
        let last = [0, 1, 3, 4, 11, 12].map(|blocks| path.last_of(blocks));
        assert_eq!(last, [None, Some((0, 1)), Some((0, 3)), Some((1, 1)), Some((1, 8)), None]);
    }
}
