//! What goes wrong on a device after a call has returned: kept until somebody asks, and told with the step that ran.

use std::sync::{Mutex, PoisonError};

use kiln_ir::{Code, Diagnostic};

/// What a device has told of itself.
#[derive(Default)]
pub(crate) struct Health(Mutex<State>);

#[derive(Default)]
struct State {
    /// The first thing that went wrong.
    fault: Option<Fault>,
    /// The plan that was handed over last.
    latest: Option<String>,
}

#[derive(Clone)]
struct Fault {
    what: String,
    during: Option<String>,
}

impl Health {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A plan is handed over to the device.
    pub(crate) fn begin(&self, plan: &str) {
        let mut state = self.state();
        if state.latest.as_deref() != Some(plan) {
            state.latest = Some(plan.to_owned());
        }
    }

    /// Something went wrong. Only the first is kept: what follows is its doing.
    pub(crate) fn fail(&self, what: impl Into<String>) {
        let mut state = self.state();
        if state.fault.is_none() {
            state.fault = Some(Fault { what: what.into(), during: state.latest.clone() });
        }
    }

    /// K0702 once something went wrong.
    pub(crate) fn check(&self) -> Result<(), Diagnostic> {
        let fault = self.state().fault.clone();
        fault.map_or(Ok(()), |fault| Err(fault.told()))
    }

    /// Whether something went wrong.
    pub(crate) fn is_broken(&self) -> bool {
        self.state().fault.is_some()
    }
}

impl Fault {
    fn told(&self) -> Diagnostic {
        let during = match &self.during {
            Some(plan) => format!("during or after a run of `{plan}`"),
            None => "before anything was run".to_owned(),
        };
        Diagnostic::new(Code::K0702, format!("device fault: {}", self.what.trim_end()))
            .label(during)
            .help("all arrays on this device are lost: open it anew and load a checkpoint")
    }
}

/// K0702 in a page of a browser, where nobody can wait.
#[cfg(target_arch = "wasm32")]
pub(crate) fn not_fetched() -> Diagnostic {
    Diagnostic::new(Code::K0702, "device fault: the bytes of this array were not fetched")
        .help("await `array.fetch()` before reading it: a page cannot wait for its device")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fault_is_kept_with_the_plan_that_ran() {
        let health = Health::default();
        assert!(health.check().is_ok());
        health.begin("train");
        health.fail("the device is gone");
        health.begin("other");
        health.fail("a buffer is invalid");
        let told = health.check().unwrap_err();
        assert_eq!(told.message, "device fault: the device is gone");
        assert_eq!(told.label.as_deref(), Some("during or after a run of `train`"));
    }
}
