//! What kind of work a request asks for, and which kinds a backend does.

/// The kind of work, as the path tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Task {
    /// The path does not tell, or every engine does it.
    #[default]
    Any,
    /// Text is generated.
    Generate,
    /// Text becomes vectors.
    Embed,
    /// Texts are scored or ranked.
    Score,
    /// Speech becomes text.
    Transcribe,
}

/// A set of tasks. By default all: what a backend does is not known unless it is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tasks(u8);

impl Tasks {
    /// Every task.
    pub const ALL: Self = Self(u8::MAX);

    /// These tasks, and [`Task::Any`].
    #[must_use]
    pub const fn of(tasks: &[Task]) -> Self {
        let (mut bits, mut at) = (1 << Task::Any as u8, 0);
        while at < tasks.len() {
            bits |= 1 << tasks[at] as u8;
            at += 1;
        }
        Self(bits)
    }

    /// Those of both sets.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Whether it is one of them. O(1).
    #[must_use]
    pub const fn has(self, task: Task) -> bool {
        self.0 & (1 << task as u8) != 0
    }
}

impl Default for Tasks {
    fn default() -> Self {
        Self::ALL
    }
}

#[cfg(test)]
mod tests {
    use super::{Task, Tasks};

    #[test]
    fn what_is_not_configured_does_everything_and_any_is_always_done() {
        let all = [Task::Any, Task::Generate, Task::Embed, Task::Score, Task::Transcribe];
        let done = |tasks: Tasks| all.map(|task| tasks.has(task));
        assert_eq!(done(Tasks::default()), [true; 5]);
        assert_eq!(done(Tasks::of(&[Task::Embed])), [true, false, true, false, false]);
        let both = Tasks::of(&[Task::Generate]).and(Tasks::of(&[Task::Score]));
        assert_eq!(done(both), [true, true, false, true, false]);
    }
}
