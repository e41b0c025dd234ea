//! The numbers of the paper's text that ours are compared with, each with the words in which it stands there.

/// A number, where it stands, and in which words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quote {
    /// The number.
    pub value: f64,
    /// Section of the paper.
    pub section: &'static str,
    /// Words around it.
    pub text: &'static str,
}

impl Quote {
    const fn new(value: f64, section: &'static str, text: &'static str) -> Self {
        Self { value, section, text }
    }

    /// Of a number in percent, as a factor: 23.4 % more is 1.234.
    pub fn more(&self) -> f64 {
        1.0 + self.value / 100.0
    }

    /// The same for less: 36.7 % less is 0.633.
    pub fn less(&self) -> f64 {
        1.0 - self.value / 100.0
    }
}

macro_rules! quotes {
    ($($(#[$doc:meta])* $name:ident = $value:expr, $section:expr, $text:expr;)*) => {
        $($(#[$doc])* pub const $name: Quote = Quote::new($value, $section, $text);)*
        /// All of them.
        #[cfg(test)]
        const ALL: &[Quote] = &[$($name),*];
    };
}

quotes! {
    /// Hetero-tensor, Llama-8B at 256 tokens, tokens/s.
    TENSOR_SPEED = 236.92, "5.4", "increases from 196.44 tokens/s to 236.92 tokens/s";
    /// The same without fast synchronization.
    BLOCKING_TENSOR_SPEED = 196.44, "5.4", "increases from 196.44 tokens/s to 236.92 tokens/s";
    /// Hetero-tensor over Hetero-layer, Llama-8B at 256 tokens, %.
    TENSOR_OVER_LAYER = 24.4, "5.6", "24.4% faster than Hetero-layer";
    /// Hetero-layer over PPL-OpenCL, Llama-8B at 256 tokens: the last of four frameworks.
    LAYER_OVER_GPU = 2.99, "5.2.1", "2.99× speedup compared to above frameworks";
    /// Hetero-tensor over PPL-OpenCL, the same.
    TENSOR_OVER_GPU = 2.72, "5.6", "2.72× faster than PPL-OpenCL";
    /// Power of Hetero-layer, W.
    LAYER_WATTS = 2.23, "5.6", "lowest power consumption at 2.23W";
    /// Power of Hetero-tensor over that of Hetero-layer, %.
    TENSOR_WATTS_OVER_LAYER = 23.2, "5.6", "only 23.2% higher than that of Hetero-layer";
    /// Power of Hetero-tensor below that of PPL-OpenCL, %.
    TENSOR_WATTS_BELOW_GPU = 36.7, "5.6", "reduced by 36.7% compared to PPL-OpenCL";
    /// Speed that a game costs Hetero-layer, %.
    LAYER_LOSS_BESIDE_GAME = 9.57, "5.5", "decreases by 9.57% and 7.26% respectively";
    /// Speed that it costs Hetero-tensor, %.
    TENSOR_LOSS_BESIDE_GAME = 7.26, "5.5", "decreases by 9.57% and 7.26% respectively";
    /// Graphs of Llama-8B at 135 tokens, ms.
    GRAPHS_AT_135 = 408.4, "5.2.2", "Under sequence length 135, preparation time is 408.4 ms";
    /// At 1000 tokens.
    GRAPHS_AT_1000 = 2050.0, "5.2.2", "increases to 2050 ms as the sequence length extends to 1000";
}

/// Hetero-layer's speed with Llama-8B at 256 tokens, in tokens/s.
pub fn layer_speed() -> f64 {
    TENSOR_SPEED.value / TENSOR_OVER_LAYER.more()
}

/// The GPU's alone.
pub fn gpu_only_speed() -> f64 {
    layer_speed() / LAYER_OVER_GPU.value
}

/// The GPU's power alone, in W.
pub fn gpu_only_watts() -> f64 {
    LAYER_WATTS.value * TENSOR_WATTS_OVER_LAYER.more() / TENSOR_WATTS_BELOW_GPU.less()
}

/// Power of Hetero-tensor, in W.
pub fn tensor_watts() -> f64 {
    LAYER_WATTS.value * TENSOR_WATTS_OVER_LAYER.more()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_stands_in_the_words_that_it_is_quoted_from() {
        for Quote { value, section, text } in ALL {
            let written = |digits: usize| {
                let number = format!("{value:.digits$}");
                let apart = |before: Option<char>| before.is_none_or(|one| !one.is_ascii_digit() && one != '.');
                text.match_indices(&number).any(|(at, _)| {
                    let behind = text[at + number.len()..].chars().next();
                    apart(text[..at].chars().next_back()) && behind.is_none_or(|one| !one.is_ascii_digit())
                })
            };
            assert!((0..=2).any(written), "§{section}, {text:?}: {value}");
        }
    }
}
