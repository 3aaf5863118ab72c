//! Place of a language model among the tensors of a multimodal model.

/// Names of the tensors of a language model in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nesting {
    /// `model.layers.…` and `lm_head.…`: the language model is the whole model.
    Alone,
    /// `language_model.model.layers.…` and `language_model.lm_head.…`, as most multimodal models
    /// are published.
    Outer,
    /// `model.language_model.layers.…` and `lm_head.…`.
    Inner,
}

const OUTER: &str = "language_model.";
const INNER: &str = "model.language_model.";

impl Nesting {
    /// Finds the place by the names of all tensors.
    pub(super) fn find<'n>(mut names: impl Iterator<Item = &'n str>) -> Self {
        let place = |name: &str| match name {
            _ if name.starts_with("language_model.model.") => Some(Self::Outer),
            _ if name.starts_with(INNER) => Some(Self::Inner),
            _ => None,
        };
        names.find_map(place).unwrap_or(Self::Alone)
    }

    /// Returns the name in the directory of a tensor of the language model.
    pub(super) fn nest(self, name: &str) -> String {
        match (self, name.strip_prefix("model.")) {
            (Self::Outer, _) => format!("{OUTER}{name}"),
            (Self::Inner, Some(rest)) => format!("{INNER}{rest}"),
            _ => name.into(),
        }
    }

    /// Returns false if a tensor of the directory belongs to another part of a multimodal model.
    pub(super) fn contains(self, name: &str) -> bool {
        match self {
            Self::Alone => true,
            Self::Outer => name.starts_with(OUTER),
            Self::Inner => name.starts_with(INNER) || name.starts_with("lm_head."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_the_language_model_are_found() {
        let (layer, head) = ("model.layers.0.mlp.up_proj.weight", "lm_head.weight");
        let vision = "vision_tower.encoder.layers.0.fc1.weight";
        let names = [
            (Nesting::Alone, [layer, head]),
            (
                Nesting::Outer,
                [
                    "language_model.model.layers.0.mlp.up_proj.weight",
                    "language_model.lm_head.weight",
                ],
            ),
            (Nesting::Inner, ["model.language_model.layers.0.mlp.up_proj.weight", head]),
        ];
        for (place, nested) in names {
            assert_eq!(Nesting::find([vision, nested[1], nested[0]].into_iter()), place);
            assert_eq!([layer, head].map(|name| place.nest(name)), nested);
            assert!(nested.iter().all(|name| place.contains(name)));
            assert_eq!(place.contains(vision), place == Nesting::Alone);
            let inner_vision = "model.vision_tower.encoder.layers.0.fc1.weight";
            assert_eq!(place.contains(inner_vision), place == Nesting::Alone);
        }
    }
}
