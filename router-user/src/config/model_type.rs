//! What a backend's model is for: which paths it gets, and how it is asked for a token.

use router_policy::{Task, Tasks};

/// What a model is for, in the words of the vLLM production stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelType {
    /// Chat.
    Chat,
    /// Completion of a text.
    Completion,
    /// Chat about pictures.
    Vision,
    /// Chat by Anthropic's API.
    Messages,
    /// Vectors of texts.
    Embeddings,
    /// Ranks of texts.
    Rerank,
    /// Scores of pairs of texts.
    Score,
    /// Text of speech.
    Transcription,
}

impl ModelType {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Chat,
        Self::Completion,
        Self::Vision,
        Self::Messages,
        Self::Embeddings,
        Self::Rerank,
        Self::Score,
        Self::Transcription,
    ];

    /// The type as configuration writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completion => "completion",
            Self::Vision => "vision",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
            Self::Rerank => "rerank",
            Self::Score => "score",
            Self::Transcription => "transcription",
        }
    }

    /// Reads a type.
    ///
    /// # Errors
    /// Which there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        super::values::choice(text, &Self::ALL.map(|t| (t.as_str(), t)))
    }

    /// What a model of the type does. One that generates text does so by every path for it; one that makes vectors
    /// also compares them.
    const fn does(self) -> Tasks {
        match self {
            Self::Chat | Self::Completion | Self::Vision | Self::Messages => Tasks::of(&[Task::Generate]),
            Self::Embeddings => Tasks::of(&[Task::Embed, Task::Score]),
            Self::Rerank | Self::Score => Tasks::of(&[Task::Score]),
            Self::Transcription => Tasks::of(&[Task::Transcribe]),
        }
    }

    /// What models of these types do together; without a type everything.
    #[must_use]
    pub fn tasks(types: &[Self]) -> Tasks {
        types.iter().map(|t| t.does()).reduce(Tasks::and).unwrap_or_default()
    }

    /// The path of a probing request.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat | Self::Vision => "/v1/chat/completions",
            Self::Completion => "/v1/completions",
            Self::Messages => "/v1/messages",
            Self::Embeddings => "/v1/embeddings",
            Self::Rerank => "/v1/rerank",
            Self::Score => "/v1/score",
            Self::Transcription => "/v1/audio/transcriptions",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ModelType;
    use router_policy::{Task, Tasks};

    #[test]
    fn types_together_do_what_each_does_and_none_does_everything() {
        assert_eq!(ModelType::tasks(&[]), Tasks::ALL);
        let both = ModelType::tasks(&[ModelType::Chat, ModelType::Transcription]);
        let does =
            [Task::Any, Task::Generate, Task::Embed, Task::Score, Task::Transcribe].map(|t| both.has(t));
        assert_eq!(does, [true, true, false, false, true]);
        for t in ModelType::ALL {
            assert_eq!(ModelType::parse(t.as_str()), Ok(t));
        }
    }

    #[test]
    fn every_type_is_probed_on_a_path_that_it_gets() {
        for t in ModelType::ALL {
            let task = crate::parse::task(t.path());
            assert!(task != Task::Any && ModelType::tasks(&[t]).has(task), "{t:?}");
        }
    }
}
