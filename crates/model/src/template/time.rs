//! `strftime_now`: the date that some templates (LLaMA 3.2) write into the prompt, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];
/// Characters of an abbreviated month or weekday.
const SHORT: usize = 3;

/// Returns the present time in the given format.
pub(super) fn format_now(format: &str) -> Result<String, Error> {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |duration| duration.as_secs());
    strftime(format, seconds)
}

/// Formats the time `seconds` after the start of 1970, in Python's `strftime` format.
fn strftime(format: &str, seconds: u64) -> Result<String, Error> {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    // 1 January 1970 was a Thursday.
    let weekday = WEEKDAYS[((days + 3) % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let day_of_year = days - days_before(year);
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let mut letter = characters.next();
        let is_short = letter == Some('-');
        if is_short {
            letter = characters.next();
        }
        let again = |format: &str| strftime(format, seconds);
        let field = match letter {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('C') => format!("{:02}", year / 100),
            Some('m') => format!("{month:02}"),
            Some('d') => format!("{day:02}"),
            Some('e') => format!("{day:2}"),
            Some('j') => format!("{:03}", day_of_year + 1),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..SHORT].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..SHORT].to_owned(),
            Some('u') => ((days + 3) % 7 + 1).to_string(),
            Some('w') => ((days + 4) % 7).to_string(),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{second:02}"),
            Some('F') => again("%Y-%m-%d")?,
            Some('T' | 'X') => again("%H:%M:%S")?,
            Some('R') => again("%H:%M")?,
            Some('D' | 'x') => again("%m/%d/%y")?,
            Some('c') => again("%a %b %e %H:%M:%S %Y")?,
            // A time without a zone has no name of one.
            Some('z' | 'Z') => String::new(),
            Some('n') => "\n".to_owned(),
            Some('t') => "\t".to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let field = other.map_or_else(|| "%".to_owned(), |letter| format!("%{letter}"));
                let message = format!("strftime_now does not support the field {field}");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        };
        let is_number = field.trim_start().bytes().all(|byte| byte.is_ascii_digit());
        let field = match field.trim_start_matches(['0', ' ']) {
            "" if is_short && is_number && !field.is_empty() => "0".to_owned(),
            short if is_short && is_number => short.to_owned(),
            _ => field,
        };
        text.push_str(&field);
    }
    Ok(text)
}

/// Returns the number of days from 1 January 1970 to the start of `year`.
fn days_before(year: u64) -> u64 {
    let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
    365 * (year - 1970) + leap_days(year - 1) - leap_days(1969)
}

/// Returns year, month and day of the Gregorian calendar, `days` after 1 January 1970.
fn date(days: u64) -> (u64, u64, u64) {
    // Counts years from March, so that a leap day is the last day of its year, in cycles of 400 years.
    let days = days + 719_468;
    let (cycle, day_of_cycle) = (days / 146_097, days % 146_097);
    let year_of_cycle =
        (day_of_cycle - day_of_cycle / 1460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year =
        day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = 400 * cycle + year_of_cycle + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let format = "%A %d %B %Y, %a %d %b %y, %H:%M:%S, %I %p, %m%%";
        let text = strftime(format, 951_827_696).unwrap();
        assert_eq!(
            text,
            "Tuesday 29 February 2000, Tue 29 Feb 00, 12:34:56, 12 PM, 02%"
        );
        assert_eq!(strftime("%Y-%m-%d %a", 0).unwrap(), "1970-01-01 Thu");
        assert_eq!(strftime("%Y-%m-%d", 4_102_444_799).unwrap(), "2099-12-31");
        // As Python writes datetime(2000, 2, 9, 12, 4, 6).
        let format = "%-d %-m %e %j %-j %F %T %R %D %c|%Z%z|%u %w %C %-H %-M%%";
        assert_eq!(
            strftime(format, 950_097_846).unwrap(),
            "9 2  9 040 40 2000-02-09 12:04:06 12:04 02/09/00 Wed Feb  9 12:04:06 2000||3 3 20 12 4%"
        );
    }

    #[test]
    fn an_unknown_field_is_an_error_that_names_it() {
        assert!(strftime("%Q", 0).unwrap_err().to_string().contains("%Q"));
        assert!(strftime("100%", 0).is_err());
    }
}
