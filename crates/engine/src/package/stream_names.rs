//! The names of the tensors of several residual streams.

/// The names of the tensors of several residual streams of a block; the last two are prefixes of a norm's tensors.
#[derive(Clone, Debug)]
pub struct StreamNames {
    /// Matrices: the router, and the two layers next to attention.
    pub matrices: [String; 3],
    /// The weights of prediction.
    pub prediction: String,
    /// The weights of correction.
    pub correction: String,
    /// Factors on what the gate of the input by token reads.
    pub scale: String,
    /// The norm of the router's input.
    pub router_norm: String,
    /// The norm of the layers next to attention.
    pub norm: String,
}

impl StreamNames {
    /// Returns the names in a block.
    pub fn of_block(block: usize) -> Self {
        let name = |part: &str| format!("blocks.{block}.streams.{part}");
        Self {
            matrices: ["router", "left", "right"].map(name),
            prediction: name("prediction"),
            correction: name("correction"),
            scale: name("scale"),
            router_norm: name("router-norm"),
            norm: name("norm"),
        }
    }

    /// Returns the names of the projections and of the outputs of all streams but the first.
    pub fn shared(count: usize) -> [Vec<String>; 2] {
        ["projections", "outputs"].map(|part| {
            let others = (1..count).map(|stream| format!("streams.{part}.{stream}"));
            others.collect()
        })
    }
}
