//! The documented errors, word for word: users of this field know these texts and paste them into a search box. `{}` is filled with names
//! as a user writes them.

/// Code and message.
pub(crate) const DOCUMENTED: [(&str, &str); 32] = [
    ("K0101", "capture tensor operations must run inside CaptureDevice::capture_scope"),
    ("K0102", "capture tensor {} has no initialized value"),
    ("K0103", "seeding is not supported during graph capture"),
    ("K0104", "a capture scope is already active on this device"),
    ("K0105", "capture scope is already complete"),
    ("K0106", "unknown graph {} tensor {}"),
    ("K0107", "duplicate graph {} tensor {}"),
    ("K0108", "graph reads undeclared input tensor {}"),
    ("K0109", "graph input tensor {} is produced within the graph"),
    ("K0110", "graph output tensor {} does not survive the graph"),
    ("K0111", "Cannot move a tensor from a capture device"),
    ("K0201", "The provided tensors are not on the same backend. Got backends {} and {}."),
    ("K0202", "Tensor is on the wrong backend (expected {})."),
    ("K0203", "Autodiff float tensor is on the wrong backend (expected {})."),
    ("K0204", "input tensor `{}` is on the wrong backend"),
    ("K0205", "optional tensor `{}` is on the wrong backend"),
    ("K0206", "backend extension input is on the wrong backend"),
    ("K0207", "q_matmul inputs are on different backends"),
    ("K0208", "unsupported dispatch backend"),
    ("K0209", "Backend not supported for custom op `{}`"),
    ("K0210", "dispatched operation received no tensor input to select a backend from"),
    ("K0401", "Should be float, got int"),
    ("K0501", "Autodiff not supported for custom op `{}`"),
    ("K0502", "only float tensors may use an autodiff primitive"),
    ("K0503", "Requires autodiff tensor."),
    ("K0504", "Autodiff should not wrap an autodiff tensor."),
    ("K0505", "Can't differentiate {}."),
    ("K0506", "Expected autodiff-wrapped float tensor for backend {}."),
    (
        "K0507",
        "Node should have a step registered, did you forget to call `Tensor::require_grad` on the tensor where you need gradients?",
    ),
    ("K0508", "an autodiff float primitive must have an enabled autodiff context"),
    ("K0509", "autodiff float input reached concrete dispatch"),
    ("K0703", "state was lost in a device fault"),
];

/// Families whose texts name shapes, dtypes, limits: each has at least one code.
pub(crate) const FAMILIES: [&str; 7] = ["K03", "K04", "K06", "K07", "K08", "K09", "K10"];
