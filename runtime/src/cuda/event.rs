//! Times on the device: events in its stream, read once all of them have passed.

use std::time::Duration;

use cudarc::driver::{CudaEvent, DriverError, sys};
use kiln_ir::Diagnostic;

use super::Cuda;

/// Marks between the works of a run.
pub(crate) struct Marks<'a> {
    cuda: &'a Cuda,
    events: Vec<CudaEvent>,
}

impl<'a> Marks<'a> {
    /// Begins to count, where the device is by now.
    pub(crate) fn new(cuda: &'a Cuda) -> Marks<'a> {
        let mut marks = Marks { cuda, events: Vec::new() };
        marks.add();
        marks
    }

    /// Marks the end of what was handed over so far.
    pub(crate) fn add(&mut self) {
        match self.cuda.mark() {
            Ok(event) => self.events.push(event),
            Err(error) => self.cuda.told("timing", Err(error)),
        }
    }

    /// Waits, and tells when each mark after the first was passed. K0702 where the device is at fault.
    pub(crate) fn passed(self) -> Result<Vec<Duration>, Diagnostic> {
        self.cuda.wait();
        self.cuda.health.check()?;
        let Some((first, rest)) = self.events.split_first() else { return Ok(Vec::new()) };
        let mut passed = Vec::with_capacity(rest.len());
        for event in rest {
            match first.elapsed_ms(event) {
                Ok(ms) => passed.push(Duration::from_secs_f64(f64::from(ms).max(0.0) / 1e3)),
                Err(error) => self.cuda.told("timing", Err(error)),
            }
        }
        self.cuda.health.check().map(|()| passed)
    }
}

impl Cuda {
    /// An event at the end of what was handed over so far.
    pub(super) fn mark(&self) -> Result<CudaEvent, DriverError> {
        self.stream.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))
    }
}
