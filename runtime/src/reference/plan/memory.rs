//! Memory of a plan's run in which every byte knows whose it is.

use kiln_ir::kernel::Access;
use kiln_ir::plan::{BufferId, Launch, Plan, Source};
use kiln_ir::{DType, HostData, Literal};

use super::{Arguments, Broken};

/// The places that buffers stand in.
pub(super) struct Memory {
    places: Vec<Place>,
    /// For each buffer, its place.
    place_of: Vec<usize>,
    /// For each buffer, the argument that the executor must copy into it before a kernel updates it.
    starts_as: Vec<Option<BufferId>>,
}

struct Place {
    bytes: Vec<u8>,
    /// Whose value each byte is part of.
    owners: Vec<Option<BufferId>>,
}

impl Memory {
    pub(super) fn new(plan: &Plan, inputs: &[HostData], arguments: Arguments) -> Memory {
        let mut memory = Memory { places: Vec::new(), place_of: Vec::new(), starts_as: vec![None; plan.buffers.len()] };
        let empty = |bytes: usize| Place { bytes: vec![0xa5; bytes], owners: vec![None; bytes] };
        let first_slot = memory.places.len();
        memory.places.extend(plan.slots.iter().map(|&bytes| empty(bytes)));
        for (index, buffer) in plan.buffers.iter().enumerate() {
            let id = BufferId(index as u32);
            let holding =
                |data: &HostData| Place { bytes: data.bytes().to_vec(), owners: vec![Some(id); data.bytes().len()] };
            let place = match &buffer.source {
                Source::Slot(slot) => first_slot + slot,
                Source::Input(input) => memory.push(holding(&inputs[*input])),
                Source::Constant(data) => memory.push(holding(data)),
                Source::Output(_) => memory.push(empty(buffer.ty.num_bytes())),
            };
            memory.place_of.push(place);
        }
        memory.donate(plan, arguments);
        memory
    }

    fn push(&mut self, place: Place) -> usize {
        self.places.push(place);
        self.places.len() - 1
    }

    fn donate(&mut self, plan: &Plan, arguments: Arguments) {
        for (index, buffer) in plan.buffers.iter().enumerate() {
            let Some(output) = buffer.donated_to else { continue };
            let of_output = |other: &kiln_ir::plan::PlanBuffer| other.source == Source::Output(output);
            if let Some(result) = plan.buffers.iter().position(of_output) {
                match arguments {
                    Arguments::Donated => self.place_of[result] = self.place_of[index],
                    Arguments::Lent => self.starts_as[result] = Some(BufferId(index as u32)),
                }
            }
        }
    }

    /// Checks what a launch is given, and hands values that it updates in place over to their successors.
    pub(super) fn bind(&mut self, plan: &Plan, launch: &Launch) -> Result<(), Broken> {
        let described = launch.kernel.buffers();
        if described.len() != launch.buffers.len() {
            return Err(format!("binds {} buffers to {}", launch.buffers.len(), described.len()));
        }
        for (index, (buffer, &id)) in described.iter().zip(&launch.buffers).enumerate() {
            let ty = &plan.buffers[id.0 as usize].ty;
            let len = ty.shape.num_elements();
            let place = self.place_of[id.0 as usize];
            if (buffer.dtype, buffer.len) != (ty.dtype, len) || ty.num_bytes() > self.places[place].bytes.len() {
                return Err(format!("binds {ty} to {buffer:?}"));
            }
            let mut others = described.iter().zip(&launch.buffers).skip(index + 1);
            let clash = others.any(|(other, other_id)| {
                let writes = buffer.access != Access::Read || other.access != Access::Read;
                writes && self.place_of[other_id.0 as usize] == place && len > 0
            });
            if clash {
                return Err(format!("writes a place that it has bound twice, buffer {index}"));
            }
            if buffer.access == Access::ReadWrite {
                self.hand_over(id, ty.num_bytes())?;
            }
        }
        Ok(())
    }

    /// The value that stands where `id` will be becomes `id`'s.
    fn hand_over(&mut self, id: BufferId, bytes: usize) -> Result<(), Broken> {
        if let Some(argument) = self.starts_as[id.0 as usize].take() {
            let source = &self.places[self.place_of[argument.0 as usize]].bytes[..bytes];
            let copy = Place { bytes: source.to_vec(), owners: vec![Some(id); bytes] };
            self.places[self.place_of[id.0 as usize]] = copy;
        }
        let place = &mut self.places[self.place_of[id.0 as usize]];
        let owner = place.owners.first().copied().flatten();
        if place.owners[..bytes].iter().any(|&byte| byte.is_none() || byte != owner) {
            return Err("updates a value that is not whole".to_owned());
        }
        place.owners[..bytes].fill(Some(id));
        Ok(())
    }

    pub(super) fn load(&self, id: BufferId, element: usize, dtype: DType) -> Result<Literal, Broken> {
        let place = &self.places[self.place_of[id.0 as usize]];
        let range = element * dtype.size()..(element + 1) * dtype.size();
        match place.owners[range.clone()].iter().find(|&&owner| owner != Some(id)) {
            Some(None) => Err(format!("loads element {element} of {id:?}, which nobody has written")),
            Some(Some(other)) => Err(format!("loads element {element} of {id:?}, which {other:?} has overwritten")),
            None => {
                let mut word = [0; 8];
                word[..dtype.size()].copy_from_slice(&place.bytes[range]);
                Ok(Literal::from_bits(dtype, u64::from_le_bytes(word)))
            }
        }
    }

    pub(super) fn store(&mut self, id: BufferId, element: usize, value: Literal) {
        let place = &mut self.places[self.place_of[id.0 as usize]];
        let (word, size) = value.to_le_bytes();
        let range = element * size..(element + 1) * size;
        place.bytes[range.clone()].copy_from_slice(&word[..size]);
        place.owners[range].fill(Some(id));
    }

    pub(super) fn copy(&mut self, plan: &Plan, from: BufferId, to: BufferId) -> Result<(), Broken> {
        for (element, value) in self.contents(plan, from)?.elements().enumerate() {
            self.store(to, element, value);
        }
        Ok(())
    }

    pub(super) fn contents(&self, plan: &Plan, id: BufferId) -> Result<HostData, Broken> {
        let ty = &plan.buffers[id.0 as usize].ty;
        let count = ty.shape.num_elements();
        let elements: Vec<Literal> =
            (0..count).map(|element| self.load(id, element, ty.dtype)).collect::<Result<_, _>>()?;
        Ok(HostData::from_literals(ty.dtype, &ty.shape, &elements).expect("as many as the shape has"))
    }
}
