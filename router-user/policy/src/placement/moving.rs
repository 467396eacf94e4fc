//! Two processes of a host that choose the same backend at once: each chose before it could see the other.
//!
//! So a choice by load is published first and looked at again: if another process counted there meanwhile and this one
//! has to give way ([`crate::LoadTable::gives_way`]), everybody is compared anew, and the request moves if the choice is
//! not the least any more. Its own request is left out of that, which is the same as asking, with it, for a difference
//! of more than one request. Nothing was counted or inserted yet, so nothing is undone but what was published.
//! Invariant: one move at most a pick, and none without other processes.

use super::Placement;
use super::candidates::{Room, Scene};
use crate::load::InFlight;
use crate::pick::{Choice, is_least};

impl Placement {
    /// Where the request goes instead; `room` is then of that comparison. While nobody interferes it costs one look at
    /// the chosen row, else as much as choosing. `again` is scratch.
    pub(super) fn look_again(
        &mut self,
        scene: &Scene<'_>,
        choice: Choice,
        room: &mut Room,
        again: &mut Room,
    ) -> Option<Choice> {
        if !self.table.is_shared() || !choice.reason.is_by_load() {
            return None;
        }
        let chosen = room.candidates[choice.index];
        let own = self.entry(chosen.id)?.load.in_flight();
        let prompt = scene.prompt_tokens();
        let counted = InFlight {
            requests: own.requests + 1,
            q_tokens: own.q_tokens + prompt - chosen.matched_tokens,
            c_tokens: own.c_tokens + prompt,
        };
        self.table.publish(chosen.id, counted);
        if !self.table.gives_way(chosen.id, chosen.others) {
            return None;
        }
        // If all are full by now, nobody is better.
        self.find_candidates(scene, &mut again.candidates, &mut again.habits).ok()?;
        let better = self.choose(scene, &again.candidates, &again.habits, &mut again.values);
        let is_stale = |at: usize| again.candidates[at].is_stale;
        let stays = again.candidates.iter().position(|c| c.id == chosen.id).is_some_and(|at| {
            // Where loads are known to within a request only, one of another process is no reason.
            is_least(&again.values, at) || is_stale(at) || is_stale(better.index)
        });
        if stays {
            return None;
        }
        self.table.publish(chosen.id, own);
        std::mem::swap(room, again);
        Some(better)
    }
}
