//! Metrics of engines and queues, collected when Prometheus reads them.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use triad_engine::EngineUse;

use crate::registry::ModelRegistry;
use crate::served::ServedModel;

/// The collector of the metrics of engines and queues.
pub(crate) struct Engines(pub(crate) Arc<ModelRegistry>);

impl fmt::Debug for Engines {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_tuple("Engines").finish_non_exhaustive()
    }
}

impl Engines {
    /// Encodes one number per loaded model.
    fn of_each(
        &self,
        encoder: &mut DescriptorEncoder,
        (name, help, kind): (&str, &str, MetricType),
        number: impl Fn(&ServedModel) -> u64,
    ) -> fmt::Result {
        let mut numbers = encoder.encode_descriptor(name, help, None, kind)?;
        for model in self.0.loaded() {
            let number = number(&model);
            let labels = [("model", model.name())];
            let one = numbers.encode_family(&labels)?;
            match kind {
                MetricType::Counter => ConstCounter::new(number).encode(one)?,
                _ => ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX)).encode(one)?,
            }
        }
        Ok(())
    }
}

impl Collector for Engines {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let (gauge, counter) = (MetricType::Gauge, MetricType::Counter);
        let encoder = &mut encoder;
        self.of_each(
            encoder,
            (
                "requests_waiting",
                "Requests that wait for their turn",
                gauge,
            ),
            |model| model.queue().counts().0 as u64,
        )?;
        self.of_each(
            encoder,
            ("answers_running", "Answers that are computed", gauge),
            |model| model.queue().counts().1 as u64,
        )?;
        self.of_each(
            encoder,
            ("kv_bytes", "Bytes of keys and values", gauge),
            |model| {
                let EngineUse {
                    kv, kv_of_heads, ..
                } = model.engine().usage();
                (kv.bytes + kv_of_heads.bytes) as u64
            },
        )?;
        self.of_each(
            encoder,
            (
                "kv_budget_bytes",
                "Bytes that keys and values may take",
                gauge,
            ),
            |model| {
                let EngineUse {
                    kv, kv_of_heads, ..
                } = model.engine().usage();
                (kv.budget + kv_of_heads.budget) as u64
            },
        )?;
        self.of_each(
            encoder,
            (
                "prefix_pages",
                "Pages in the index of prompts' beginnings",
                gauge,
            ),
            |model| model.engine().usage().kv.indexed_pages as u64,
        )?;
        self.of_each(
            encoder,
            (
                "prefix_tokens_looked_up",
                "Tokens looked up in that index",
                counter,
            ),
            |model| model.engine().usage().kv.tokens_looked_up,
        )?;
        self.of_each(
            encoder,
            ("prefix_tokens_found", "Tokens found in it", counter),
            |model| model.engine().usage().kv.tokens_found,
        )?;
        self.of_each(
            encoder,
            (
                "decode_steps",
                "Steps of decode, each for all sequences that were ready",
                counter,
            ),
            |model| model.engine().usage().steps,
        )?;
        let help = "Seconds that a processor computed; the rest is bubbles and idle time";
        let mut busy = encoder.encode_descriptor("processor_busy_seconds", help, None, counter)?;
        for model in self.0.loaded() {
            for processor in model.engine().processor_use() {
                let labels = [("model", model.name()), ("processor", &processor.name)];
                ConstCounter::new(processor.busy_seconds).encode(busy.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
