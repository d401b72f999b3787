//! Calling a custom op: checked, typed, and recorded as one node.
//!
//! In the order in which a user must mend things: scopes, backends, tracking, types, and whether anything could run it on this backend. The
//! op's own functions run with no lock held, so they may do what they like.

use std::sync::Arc;

use kiln_ir::custom::{self, CpuFunction, GradientFunction, TextFunction, View, ViewMut};
use kiln_ir::tree::{Fixed, Hole, Structure, Tree};
use kiln_ir::{
    Attribute, Backend, Code, Custom, CustomBehaviour, CustomOps, Diagnostic, Diagnostics, Graph, Loc, Op, TensorType,
    Value,
};

use super::operands::{Operand, attributes, noted, one_backend, operands, untracked};
use super::trace::{Subject, called_from, trace};
use super::{Arguments, CustomOp, Template, Text, Types, filled, results, rules};
use crate::backends::nothing_to_select_from;
use crate::session::{Session, record_many, session_of};
use crate::{Scope, Tensor, frame};

/// A call that has passed all checks.
struct Call {
    custom: Custom,
    /// What the op and those in its body do.
    customs: CustomOps,
}

impl<A, O> CustomOp<A, O>
where
    A: Tree<Tensor, Family: 'static> + 'static,
    O: Tree<Tensor, Family: Fixed + 'static> + 'static,
    Template<A>: Send + Sync + 'static,
{
    /// Records the op on its arguments: tensors by value or by reference, as [`Arguments`] tells.
    ///
    /// Mistakes are kept until the scope ends: K0202 to K0206 for a tensor on another backend than the others, K0209 where the op has neither a
    /// body nor a kernel for their backend, K0211 for a kernel's text that does not fit, K0312 for what the type function refuses, K0509 for a
    /// tracked tensor that must not be, K0107 for another op of the same name.
    ///
    /// # Panics
    ///
    /// With K0210 where no argument is a tensor and no scope is open.
    #[track_caller]
    pub fn call(&self, arguments: impl Arguments<A>) -> O {
        let loc = frame::here();
        let arguments = arguments.arguments();
        let tensors = arguments.leaves();
        let session = match (tensors.is_empty(), Session::current()) {
            (false, _) => match session_of(&tensors, loc) {
                Ok(session) => session,
                Err(poison) => return results::<O, Tensor>(std::iter::repeat(poison)),
            },
            (true, Some(session)) => session,
            (true, None) => panic!("{}", nothing_to_select_from(&self.name).at(loc)),
        };
        let poison = || results::<O, Tensor>(std::iter::repeat_with(|| Tensor::poison(session.clone(), loc)));
        if tensors.iter().any(|tensor| tensor.is_poisoned()) {
            return poison();
        }
        match self.checked(&session, &arguments, loc) {
            Ok(call) => self.recorded(&session, &tensors, call),
            Err(mistakes) => {
                mistakes.into_iter().for_each(|mistake| session.fail(frame::named(mistake, loc)));
                poison()
            }
        }
    }

    /// What the op does with arguments of these types, for a text that names it: a graph that was parsed is compiled and run with this.
    ///
    /// # Errors
    ///
    /// As [`CustomOp::call`], as far as types go.
    pub fn at(&self, arguments: &Types<A>) -> kiln_ir::Result<CustomOps> {
        let template = arguments.map_ref(|_| Hole);
        let types: Vec<TensorType> = arguments.leaves().into_iter().cloned().collect();
        let structure = arguments.structure();
        let named = operands(&structure, &self.names);
        let backend = types.first().map_or(Backend::Cpu, |ty| ty.backend);
        Ok(self.typed(&template, &structure, &named, &types, backend, Loc::Unknown)?.customs)
    }

    fn checked(&self, session: &Arc<Session>, arguments: &A, loc: Loc) -> Result<Call, Diagnostics> {
        let structure = arguments.structure();
        let tensors = arguments.leaves();
        let values: Vec<Value> = tensors.iter().filter_map(|tensor| tensor.value).collect();
        let named = operands(&structure, &self.names);
        // Where another thread has ended the scope, recording says so.
        if let Some(state) = session.lock_open() {
            one_backend(&self.name, &state.builder, &named, &tensors, &values)?;
            untracked(&self.name, &state.builder, &named, &tensors, &values, &self.untracked)?;
        }
        let types: Vec<TensorType> = tensors.iter().map(|tensor| tensor.ty().clone()).collect();
        let backend = types.first().map_or(session.backend, |ty| ty.backend);
        let template = arguments.map_ref(|_| Hole);
        self.typed(&template, &structure, &named, &types, backend, loc).map_err(|mistakes| {
            let state = session.lock_open();
            let told = |mistake: Diagnostic| match (&state, mistake.notes.is_empty()) {
                (Some(state), true) => noted(mistake, &state.builder, &named, &values),
                (Some(_), false) | (None, _) => mistake,
            };
            let told: Vec<Diagnostic> = mistakes.into_iter().map(told).collect();
            Diagnostics::from_list(told).expect("there is at least one mistake")
        })
    }

    /// The node for arguments of these types, and what it does.
    fn typed(
        &self,
        template: &Template<A>,
        structure: &Structure,
        named: &[Operand],
        types: &[TensorType],
        backend: Backend,
        loc: Loc,
    ) -> Result<Call, Diagnostics> {
        let declared = self.declared_types(template, types)?;
        let traced = self.traced_body(template, named, types, backend, loc)?;
        let (body, mut customs) = traced.map_or((None, CustomOps::new()), |(body, customs)| (Some(body), customs));
        let result_types: Vec<TensorType> = match (&body, declared) {
            (Some(body), _) => body.outputs.iter().map(|output| body.ty(output.value).clone()).collect(),
            (None, Some(declared)) => declared.into_iter().map(|ty| TensorType { backend, ..ty }).collect(),
            (None, None) => Vec::new(),
        };
        let attributes = attributes(structure, &self.names);
        let behaviour = self.behaviour(Arc::new(template.map_ref(|_| Hole)), attributes.clone(), named, backend);
        let body = body.map(Arc::new);
        let custom = Custom { name: self.name.clone(), attributes, results: result_types.into(), body };
        customs.add(behaviour)?;
        if custom.body.is_none() && !customs.run_on(&custom, backend) {
            return Err(custom::unsupported(&custom, backend, &customs).into());
        }
        self.check_texts(&custom, &customs, types, backend)?;
        Ok(Call { custom, customs })
    }

    /// What the type function says.
    fn declared_types(
        &self,
        template: &Template<A>,
        types: &[TensorType],
    ) -> Result<Option<Vec<TensorType>>, Diagnostic> {
        let Some(function) = &self.types else { return Ok(None) };
        let declared = function(&filled::<A, TensorType>(template, types.to_vec()));
        match declared {
            Ok(declared) => Ok(Some(declared.into_leaves())),
            Err(reason) => {
                let message = format!("custom op `{}`: {reason}", self.name);
                Err(Diagnostic::new(Code::K0312, message)
                    .in_op(&*self.name)
                    .label("the op does not take these operands"))
            }
        }
    }

    fn traced_body(
        &self,
        template: &Template<A>,
        named: &[Operand],
        types: &[TensorType],
        backend: Backend,
        loc: Loc,
    ) -> Result<Option<(Graph, CustomOps)>, Diagnostics> {
        let Some(body) = &self.body else { return Ok(None) };
        let inputs: Vec<(String, TensorType)> =
            named.iter().zip(types).map(|(operand, ty)| (operand.name.clone(), ty.clone())).collect();
        let subject = Subject { op: &self.name, part: "body", backend };
        let named = |results: &O| {
            let names = results.names().into_iter().map(|name| if name.is_empty() { "out".to_owned() } else { name });
            Ok(names.zip(results.leaves().into_iter().cloned()).collect())
        };
        let traced = trace(subject, &inputs, |tickets| body(&filled::<A, Tensor>(template, tickets)), named);
        match traced {
            Ok((_, captured)) => Ok(Some((captured.graph, captured.customs))),
            Err(mistakes) => {
                let mistakes = called_from(mistakes, subject, loc).collect();
                Err(Diagnostics::from_list(mistakes).expect("there is at least one mistake"))
            }
        }
    }

    /// The op's functions for arguments like `template`.
    fn behaviour(
        &self,
        template: Arc<Template<A>>,
        attributes: Vec<(Arc<str>, Attribute)>,
        named: &[Operand],
        backend: Backend,
    ) -> CustomBehaviour {
        let cpu = self.cpu.clone().map(|kernel| -> CpuFunction {
            let template = template.clone();
            Arc::new(move |operands: Vec<View<'_>>, written: Vec<ViewMut<'_>>| {
                kernel(&filled::<A, View<'_>>(&template, operands), &mut results::<O, ViewMut<'_>>(written))
            })
        });
        let gradient = self.gradient.clone().map(|gradient| -> GradientFunction {
            let (template, name, untracked) = (template.clone(), self.name.clone(), self.untracked.clone());
            let named = named.to_vec();
            Arc::new(move |operands: &[TensorType], written: &[TensorType]| {
                let rule = rules::Rule { name: &name, named: &named, untracked: &untracked, backend };
                rules::traced::<A, O>(&rule, &template, &*gradient, operands, written)
            })
        });
        CustomBehaviour {
            name: self.name.clone(),
            attributes,
            cpu,
            wgsl: self.wgsl.clone().map(|text| text_function::<A, O, _>(&template, text)),
            cuda: self.cuda.clone().map(|text| text_function::<A, O, _>(&template, text)),
            gradient,
            tolerance: self.tolerance,
            identity: self.identity.clone(),
        }
    }

    /// K0211 where the text for this backend does not fit.
    fn check_texts(
        &self,
        custom: &Custom,
        customs: &CustomOps,
        types: &[TensorType],
        backend: Backend,
    ) -> Result<(), Diagnostic> {
        let Some(behaviour) = customs.of(custom) else { return Ok(()) };
        let buffers = types.len() + custom.results.len();
        match (backend, &behaviour.wgsl, &behaviour.cuda) {
            (Backend::Wgpu, Some(text), _) => custom::check(&self.name, &text(types, &custom.results), buffers),
            (Backend::Cuda, _, Some(text)) => custom::check(&self.name, &text(types, &custom.results), buffers),
            (Backend::Wgpu | Backend::Cuda | Backend::Cpu | Backend::NdArray, _, _) => Ok(()),
        }
    }

    #[track_caller]
    fn recorded(&self, session: &Arc<Session>, tensors: &[&Tensor], call: Call) -> O {
        let Call { custom, customs } = call;
        let count = custom.results.len();
        let (op, name) = (Op::Custom(custom), self.name.clone());
        let add = |state: &mut crate::session::State, values: &[Value], loc: Loc| -> Result<Vec<Value>, Diagnostic> {
            state.customs.join(&customs)?;
            let node = state.builder.add(op.clone(), values, loc).map_err(|diagnostic| diagnostic.in_op(&*name))?;
            Ok((0..count as u32).map(|result| Value { node, result }).collect())
        };
        if !tensors.is_empty() {
            return results::<O, Tensor>(record_many(tensors, count, add));
        }
        // Without operands there is a scope to record in, and the first result leads to the others.
        let first = Scope::of(session.clone()).record(|state, loc| {
            add(state, &[], loc)?.first().copied().ok_or_else(|| Diagnostic::new(Code::K0312, "an op without results"))
        });
        let all = |_: &mut crate::session::State, values: &[Value], _: Loc| -> Result<Vec<Value>, Diagnostic> {
            Ok((0..count as u32).map(|result| Value { result, ..values[0] }).collect())
        };
        results::<O, Tensor>(record_many(&[&first], count, all))
    }
}

fn text_function<A, O, K>(template: &Arc<Template<A>>, text: Text<A, O, K>) -> TextFunction<K>
where
    A: Tree<Tensor, Family: 'static> + 'static,
    O: Tree<Tensor, Family: Fixed + 'static> + 'static,
    Template<A>: Send + Sync + 'static,
    K: 'static,
{
    let template = template.clone();
    Arc::new(move |operands: &[TensorType], written: &[TensorType]| {
        text(&filled::<A, TensorType>(&template, operands.to_vec()), &results::<O, TensorType>(written.to_vec()))
    })
}
