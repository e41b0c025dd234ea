//! Energy that this machine uses, where the system reports it: counters of processors, or the power of a battery.

mod battery;
mod counters;

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use battery::Battery;
use counters::EnergyCounters;

/// How often the power of a battery is read (llm.npu, §4.1).
const INTERVAL: Duration = Duration::from_millis(100);

/// The part of the machine that a meter measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnergySource {
    /// The processors, by RAPL of Intel and AMD: with cores and caches, often also the memory controller.
    Processors,
    /// Everything that the batteries feed.
    Batteries,
}

impl EnergySource {
    /// Returns the name for messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Processors => "processors (RAPL)",
            Self::Batteries => "batteries",
        }
    }
}

/// A meter of the energy that all programs together use.
#[derive(Debug)]
pub struct EnergyMeter(Kind);

#[derive(Debug)]
enum Kind {
    Processors(EnergyCounters),
    Batteries(Sampled),
}

/// Batteries whose power a thread reads.
#[derive(Debug)]
struct Sampled {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    batteries: Vec<Battery>,
    sum: Mutex<Sum>,
    end: Condvar,
}

/// The joules so far, up to the latest reading.
#[derive(Debug)]
struct Sum {
    joules: Option<f64>,
    at: Instant,
    watts: f64,
    is_over: bool,
}

impl EnergyMeter {
    /// Returns a meter of this machine: of its processors, or of its batteries while they are discharged; `None` if the
    /// system reports neither. Virtual machines report none, and on Linux only root can read the counters of processors.
    pub fn find() -> Option<Self> {
        Self::find_in(Path::new("/sys"), INTERVAL)
    }

    /// Returns a meter of the system below another root. `interval` is the time between readings of batteries.
    fn find_in(sys: &Path, interval: Duration) -> Option<Self> {
        if let Some(counters) = EnergyCounters::find_in(sys) {
            return Some(Self(Kind::Processors(counters)));
        }
        let batteries = Battery::find_in(sys);
        let watts = power(&batteries)?;
        let sum = Sum {
            joules: Some(0.0),
            at: Instant::now(),
            watts,
            is_over: false,
        };
        let shared = Arc::new(Shared {
            batteries,
            sum: Mutex::new(sum),
            end: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("triad-energy".to_owned());
        let thread = builder.spawn(move || of_thread.sample(interval)).ok()?;
        let thread = Some(thread);
        Some(Self(Kind::Batteries(Sampled { shared, thread })))
    }

    /// Returns the part of the machine that is measured.
    pub fn source(&self) -> EnergySource {
        match &self.0 {
            Kind::Processors(_) => EnergySource::Processors,
            Kind::Batteries(_) => EnergySource::Batteries,
        }
    }

    /// Returns the joules since the meter was made; `None` if the system does not report them any more, or a battery is
    /// charged.
    pub fn joules(&self) -> Option<f64> {
        match &self.0 {
            Kind::Processors(counters) => counters.joules(),
            Kind::Batteries(sampled) => {
                let mut sum = sampled.shared.lock();
                sampled.shared.read(&mut sum);
                sum.joules
            }
        }
    }
}

impl Drop for Sampled {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.end.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Sum> {
        self.sum.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the power until the meter is dropped.
    fn sample(&self, interval: Duration) {
        let mut sum = self.lock();
        while !sum.is_over {
            let waited = self.end.wait_timeout(sum, interval);
            (sum, _) = waited.unwrap_or_else(PoisonError::into_inner);
            self.read(&mut sum);
        }
    }

    /// Adds the energy since the latest reading: its time by the mean of both powers.
    fn read(&self, sum: &mut Sum) {
        let (now, watts) = (Instant::now(), power(&self.batteries));
        let seconds = (now - sum.at).as_secs_f64();
        let more = watts.map(|watts| 0.5 * (watts + sum.watts) * seconds);
        sum.joules = sum.joules.zip(more).map(|(before, more)| before + more);
        (sum.at, sum.watts) = (now, watts.unwrap_or(sum.watts));
    }
}

/// Returns the power that batteries give together; `None` if there are none, or one does not say.
fn power(batteries: &[Battery]) -> Option<f64> {
    let watts = batteries.iter().map(Battery::watts);
    let watts = watts.sum::<Option<f64>>()?;
    (!batteries.is_empty()).then_some(watts)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn battery(root: &Path, name: &str, fields: &[(&str, &str)]) {
        let folder = root.join("class/power_supply").join(name);
        fs::create_dir_all(&folder).unwrap();
        for (field, value) in fields {
            fs::write(folder.join(field), format!("{value}\n")).unwrap();
        }
    }

    const DISCHARGED: [(&str, &str); 3] = [
        ("type", "Battery"),
        ("status", "Discharging"),
        ("power_now", "2000000"),
    ];

    #[test]
    fn the_energy_of_batteries_is_their_power_over_time() {
        let root = tempfile::tempdir().unwrap();
        battery(root.path(), "BAT0", &DISCHARGED);
        // A phone's battery says its current, in some systems below zero.
        battery(
            root.path(),
            "battery",
            &[
                ("type", "Battery"),
                ("status", "Discharging"),
                ("current_now", "-500000"),
                ("voltage_now", "4000000"),
            ],
        );
        battery(root.path(), "AC", &[("type", "Mains"), ("online", "0")]);
        let meter = EnergyMeter::find_in(root.path(), Duration::from_millis(5)).unwrap();
        assert_eq!(meter.source(), EnergySource::Batteries);
        let (start, before) = (Instant::now(), meter.joules().unwrap());
        std::thread::sleep(Duration::from_millis(100));
        let joules = meter.joules().unwrap() - before;
        let seconds = start.elapsed().as_secs_f64();
        assert!(
            joules > 0.9 * 4.0 * 0.1 && joules < 1.01 * 4.0 * seconds,
            "{joules} J of 4 W in {seconds} s"
        );
        // More power from now on: readings between the calls see it.
        battery(root.path(), "BAT0", &[("power_now", "8000000")]);
        let (start, before) = (Instant::now(), meter.joules().unwrap());
        std::thread::sleep(Duration::from_millis(100));
        let joules = meter.joules().unwrap() - before;
        let seconds = start.elapsed().as_secs_f64();
        assert!(joules > 0.9 * 10.0 * 0.1 && joules < 1.01 * 10.0 * seconds);
        // What a charger gives is not known.
        battery(root.path(), "BAT0", &[("status", "Charging")]);
        assert_eq!(meter.joules(), None);
        battery(root.path(), "BAT0", &[("status", "Discharging")]);
        assert_eq!(meter.joules(), None, "a part is missing");
    }

    #[test]
    fn there_is_no_meter_without_a_battery_that_is_discharged_and_says_its_power() {
        let find = |fields: &[(&str, &str)]| {
            let root = tempfile::tempdir().unwrap();
            battery(root.path(), "BAT0", fields);
            EnergyMeter::find_in(root.path(), INTERVAL).is_some()
        };
        assert!(find(&DISCHARGED));
        assert!(!find(&[("type", "Mains")]));
        assert!(!find(&[("type", "Battery"), ("status", "Discharging")]));
        for (field, value) in [
            ("status", "Charging"),
            ("status", "Full"),
            ("power_now", "much"),
            ("type", "UPS"),
        ] {
            let mut fields = DISCHARGED.to_vec();
            fields.retain(|(other, _)| *other != field);
            fields.push((field, value));
            assert!(!find(&fields), "{field}: {value}");
        }
    }

    #[test]
    fn counters_of_processors_come_before_batteries() {
        let root = tempfile::tempdir().unwrap();
        battery(root.path(), "BAT0", &DISCHARGED);
        let folder = root.path().join("class/powercap/intel-rapl:0");
        fs::create_dir_all(&folder).unwrap();
        for (field, value) in [
            ("name", "package-0"),
            ("max_energy_range_uj", "10000000"),
            ("energy_uj", "5"),
        ] {
            fs::write(folder.join(field), value).unwrap();
        }
        let meter = EnergyMeter::find_in(root.path(), INTERVAL).unwrap();
        assert_eq!(meter.source(), EnergySource::Processors);
        fs::write(folder.join("energy_uj"), "3000005").unwrap();
        assert_eq!(meter.joules(), Some(3.0));
    }
}
