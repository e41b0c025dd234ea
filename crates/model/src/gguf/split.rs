//! Models in several GGUF files: `NAME-00001-of-00003.gguf` and so on.

/// The name of one part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartName<'a> {
    /// The part of the name that all parts share; it may have folders.
    pub stem: &'a str,
    /// The number of this part; the first is 1.
    pub number: usize,
    /// The number of parts.
    pub count: usize,
}

impl<'a> PartName<'a> {
    /// Parses the name of a part; returns `None` for any other name.
    pub fn parse(name: &'a str) -> Option<Self> {
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let five_digits = |text: &str| {
            (text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit()))
                .then(|| text.parse().ok())
                .flatten()
        };
        let (number, count) = (five_digits(number)?, five_digits(count)?);
        ((1..=count).contains(&number)).then_some(Self {
            stem,
            number,
            count,
        })
    }

    /// Returns the names of all parts, in their order.
    pub fn all(self) -> impl Iterator<Item = String> + 'a {
        let Self { stem, count, .. } = self;
        (1..=count).map(move |number| format!("{stem}-{number:05}-of-{count:05}.gguf"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_part_has_its_number_and_the_number_of_parts() {
        let name = PartName::parse("a/b-of-c-00002-of-00003.gguf").unwrap();
        let expected = PartName {
            stem: "a/b-of-c",
            number: 2,
            count: 3,
        };
        assert_eq!(name, expected);
        assert_eq!(
            name.all().collect::<Vec<_>>(),
            [1, 2, 3].map(|number| format!("a/b-of-c-0000{number}-of-00003.gguf"))
        );
        for other in [
            "a.gguf",
            "a-00001-of-00003",
            "a-00000-of-00003.gguf",
            "a-00004-of-00003.gguf",
            "a-1-of-3.gguf",
            "a-+0001-of-00003.gguf",
            "00001-of-00003.gguf",
        ] {
            assert_eq!(PartName::parse(other), None, "{other}");
        }
    }
}
