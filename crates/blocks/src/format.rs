//! The names of the formats.

use std::fmt;

/// Defines the formats, and the macro that chooses a format's layout.
macro_rules! formats {
    ($all:literal; $($name:ident),*) => {
        /// Format of a quantized row.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "the names are the field's own")]
        #[expect(non_camel_case_types, reason = "GGUF writes them so")]
        pub enum BlockFormat {
            $($name,)*
        }

        impl BlockFormat {
            /// Every format, for tables and tests.
            pub const ALL: [Self; $all] = [$(Self::$name,)*];

            /// Returns the name in GGUF.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

formats!(25; Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, Q1_0, Q2_0, IQ3_S,
    IQ3_XXS, IQ2_XXS, IQ2_XS, IQ2_S, NVFP4, TQ1_0, TQ2_0, IQ1_S, IQ1_M);

impl fmt::Display for BlockFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
