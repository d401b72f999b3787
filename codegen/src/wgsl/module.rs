//! One text: its bindings, the functions that it needs, its workgroup memory and its entry point.

use std::collections::BTreeMap;
use std::sync::Arc;

use kiln_ir::gpu::{Binding, Dispatch, GpuMemory, GpuTarget};
use kiln_ir::kernel::{Block, Buffer, BufferIndex};
use kiln_ir::{Code, Diagnostic};

use super::functions::Functions;
use super::memory::{Bound, plan_vectors};
use super::space::Lanes;
use super::types::Held;
use super::writer::Writer;

/// A text in the making. What is loaded, stored and called while its body is printed is declared when it is finished.
#[derive(Debug)]
pub(super) struct Module<'a> {
    /// What the device offers.
    pub(super) target: &'a GpuTarget,
    /// Functions called so far.
    pub(super) functions: Functions,
    bound: Vec<Bound>,
    lens: Vec<usize>,
    /// The launch's buffers by those of the part that is being printed.
    part: Option<Vec<BufferIndex>>,
    scratch: BTreeMap<u32, (String, bool)>,
    workgroup: BTreeMap<String, String>,
    extra: Vec<String>,
}

/// Where the invocations of a dispatch find out who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subgroups {
    /// The text does not use them.
    Unused,
    /// `subgroup_size`, `subgroup_id` and `subgroup_lane` are parameters of the entry point.
    Used,
}

impl<'a> Module<'a> {
    /// A text for a kernel with these buffers. K0601 where the target lacks a dtype of theirs.
    pub(super) fn new(buffers: &[Buffer], target: &'a GpuTarget) -> Result<Module<'a>, Diagnostic> {
        let bound = buffers.iter().enumerate().map(|(index, buffer)| Bound::new(index, buffer, target));
        Ok(Module {
            target,
            functions: Functions::new(target.fma),
            bound: bound.collect::<Result<_, _>>()?,
            lens: buffers.iter().map(|buffer| buffer.len).collect(),
            part: None,
            scratch: BTreeMap::new(),
            workgroup: BTreeMap::new(),
            extra: Vec::new(),
        })
    }

    /// From here on, blocks name buffers by the numbers of a part of a horizontal kernel.
    pub(super) fn set_part(&mut self, buffers: &[BufferIndex]) {
        self.part = Some(buffers.to_vec());
    }

    /// The launch's number of a buffer that a block names.
    pub(super) fn buffer(&self, buffer: BufferIndex) -> BufferIndex {
        self.part.as_ref().map_or(buffer, |part| part[buffer.0 as usize])
    }

    /// One of the launch's buffers.
    pub(super) fn bound(&mut self, buffer: BufferIndex) -> &mut Bound {
        &mut self.bound[buffer.0 as usize]
    }

    /// Says which blocks will be printed, each for how many neighbours, so that buffers can be declared as vectors. At most once, before
    /// anything is printed; blocks name the launch's buffers.
    pub(super) fn plan_vectors(&mut self, blocks: &[(&Block, Option<Lanes>)]) {
        plan_vectors(&mut self.bound, &self.lens, blocks);
    }

    /// A buffer of the program's own, as an array of `element`: its name.
    pub(super) fn scratch(&mut self, number: u32, element: &str, writable: bool) -> String {
        let entry = self.scratch.entry(number).or_insert_with(|| (element.to_owned(), false));
        entry.1 |= writable;
        format!("s{number}")
    }

    /// Workgroup memory of a type, under a name.
    pub(super) fn workgroup(&mut self, name: impl Into<String>, ty: impl Into<String>) {
        self.workgroup.insert(name.into(), ty.into());
    }

    /// A function of this text's own.
    pub(super) fn function(&mut self, text: String) {
        self.extra.push(text);
    }

    /// The whole text. `body` stands in the entry point, where `group`, the number of the workgroup, and `local`, that of the invocation in
    /// it, are `i32`; workgroups from `groups` on have left.
    pub(super) fn dispatch(
        mut self,
        entry: &str,
        size: u32,
        groups: u64,
        subgroups: Subgroups,
        body: &Writer,
    ) -> Result<Dispatch, Diagnostic> {
        let workgroups = spread(groups, self.target)?;
        let mut functions = Vec::new();
        for bound in self.bound.iter().filter(|bound| bound.used) {
            functions.extend(bound.functions(&mut self.functions));
        }
        let mut text = String::new();
        if self.bound.iter().any(|bound| bound.used && bound.declared().contains("f16")) {
            text.push_str("enable f16;\n\n");
        }
        let mut bindings = Vec::new();
        let mut declare = |name: &str, element: &str, memory: GpuMemory, writable: bool, text: &mut String| {
            let access = if writable { "read_write" } else { "read" };
            let number = bindings.len();
            text.push_str(&format!("@group(0) @binding({number}) var<storage, {access}> {name}: array<{element}>;\n"));
            bindings.push(Binding { memory, writable });
        };
        for (index, bound) in self.bound.iter().enumerate().filter(|(_, bound)| bound.used) {
            let memory = GpuMemory::Buffer(BufferIndex(index as u32));
            declare(&format!("b{index}"), &bound.declared(), memory, bound.writable(), &mut text);
        }
        for (number, (element, writable)) in &self.scratch {
            declare(&format!("s{number}"), element, GpuMemory::Scratch(*number), *writable, &mut text);
        }
        for (name, ty) in &self.workgroup {
            text.push_str(&format!("var<workgroup> {name}: {ty};\n"));
        }
        let mut parameters = vec!["@builtin(local_invocation_index) invocation: u32"];
        if groups > 1 {
            parameters.push("@builtin(workgroup_id) workgroup: vec3<u32>");
        }
        if subgroups == Subgroups::Used {
            parameters.push("@builtin(subgroup_size) subgroup_size: u32");
            parameters.push("@builtin(subgroup_id) subgroup_id: u32");
            parameters.push("@builtin(subgroup_invocation_id) subgroup_lane: u32");
        }
        text.push_str(&format!(
            "\n@compute @workgroup_size({size})\nfn {entry}(\n    {},\n) {{\n",
            parameters.join(",\n    ")
        ));
        text.push_str("    let local = i32(invocation);\n");
        match workgroups {
            _ if groups <= 1 => text.push_str("    let group = 0;\n"),
            [_, 1, _] => text.push_str("    let group = i32(workgroup.x);\n"),
            [x, y, _] => {
                text.push_str(&format!("    let group = i32(workgroup.x + workgroup.y * {x}u);\n"));
                if u64::from(x) * u64::from(y) > groups {
                    text.push_str(&format!("    if group >= {groups} {{ return; }}\n"));
                }
            }
        }
        text.push_str(body.text());
        text.push_str("}\n");
        for function in self.extra.iter().chain(&functions) {
            text.push('\n');
            text.push_str(function);
        }
        self.functions.print(&mut text);
        Ok(Dispatch { source: Arc::from(text), entry: Arc::from(entry), workgroups, bindings })
    }
}

/// Workgroups along each axis of a dispatch of `count`: along the first where the target allows so many, else evenly along two, so that next to
/// none has nothing to do.
///
/// Errors: K0603 where there are more than the target can count in two axes, or than an `i32` can.
pub(super) fn spread(count: u64, target: &GpuTarget) -> Result<[u32; 3], Diagnostic> {
    let most = u64::from(target.workgroups);
    let y = count.div_ceil(most);
    let x = count.div_ceil(y.max(1));
    if y > most || count > i32::MAX as u64 {
        return Err(Diagnostic::new(Code::K0603, format!("a kernel needs {count} workgroups"))
            .label(format!("this GPU takes {most} along each axis")));
    }
    Ok([x as u32, y as u32, 1])
}

/// Scratch memory of a program, as it is asked for.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Bytes of each buffer.
    pub(super) bytes: Vec<usize>,
}

impl Scratch {
    /// A buffer of so many numbers, held so: its number.
    pub(super) fn add(&mut self, held: Held, len: usize) -> u32 {
        self.bytes.push(held.scratch_bytes() * len.max(1));
        self.bytes.len() as u32 - 1
    }
}
