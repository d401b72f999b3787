//! Machine code of vector programs, for x86-64 with AVX2 and FMA.
//!
//! A program becomes one loop over eight lanes at a time, or over two or four times as many that are computed side by side. Values live in vector registers; where those do not suffice, the one that is read
//! last gives way to memory of the stack, unless it is a constant or an operand's lanes, which are simply read again. Constants are operands
//! in memory, behind the code.
//!
//! The function's signature is [`Entry`]; it keeps to the System V convention on every system.

// The assembler's macro converts what is a register's number already.
#![allow(clippy::useless_conversion)]

use dynasmrt::x64::X64Relocation;
use dynasmrt::{DynamicLabel, DynasmApi, DynasmLabelApi, VecAssembler, dynasm, mmap};

use super::Look;
use super::vector::{Kept, Lies, One, Operation, Predicate, Program, SUMS, Two, V};

/// The loop: addresses of operands and results, in the program's order, where the lanes end and where they begin, multiples of 64.
pub(super) type Entry = unsafe extern "sysv64" fn(*const *mut u8, usize, usize);

/// Vector registers.
const REGISTERS: usize = 16;
/// The first of those that hold sums, where there are any.
const FIRST_SUM: u8 = (REGISTERS - SUMS) as u8;
/// What leaves every number as it is when added.
const NOTHING: u32 = 1 << 31;
/// General registers that hold addresses: rcx, rdx, r8 to r11, rbx, rbp, r12 to r14. What finds no place is read from the table at each turn.
const ADDRESSES: [u8; 11] = [1, 2, 8, 9, 10, 11, 3, 5, 12, 13, 14];
/// The register for the others: r15.
const SPARE: u8 = 15;
/// Bytes of a vector.
const VECTOR: i32 = 32;
/// Bytes of a line of the cache.
const LINE: i32 = 64;
/// Lanes of a vector.
const LANES: i32 = 8;

/// Code under way: the functions of one kernel.
pub(super) struct Assembler(VecAssembler<X64Relocation>);

/// Code that can be run.
pub(super) struct Code(mmap::ExecutableBuffer);

impl Assembler {
    pub(super) fn new() -> Assembler {
        Assembler(VecAssembler::new(0))
    }

    /// Adds a program, which begins at the offset that comes back.
    pub(super) fn add(&mut self, program: &Program, look: Look) -> usize {
        let (program, copies) = program.interleaved();
        self.function(&[program], copies, look)
    }

    /// The same of a program with a result that is summed.
    pub(super) fn add_summed(&mut self, program: &Program, look: Look) -> usize {
        self.function(&program.summed(), SUMS, look)
    }

    /// A loop of programs that follow one another, over so many vectors.
    fn function(&mut self, parts: &[Program], vectors: usize, look: Look) -> usize {
        let out = &mut self.0;
        let begin = out.offset().0;
        let lanes = LANES * vectors as i32;
        let results = || parts.iter().flat_map(|part| &part.results);
        let operands = parts.first().map_or(0, |part| part.operands.len());
        let addresses = operands + results().map(|&(_, _, result, _)| result + 1).max().unwrap_or(0);
        let sum = results().find(|&&(_, kept, ..)| kept == Kept::Summed).map(|&(_, _, result, _)| operands + result);
        let (top, room, nothing) = (out.new_dynamic_label(), out.new_dynamic_label(), out.new_dynamic_label());
        // How much of the stack is needed is known only at the end: it stands behind the code.
        dynasm!(out ; .arch x64
            ; push rbx ; push rbp ; push r12 ; push r13 ; push r14 ; push r15
            ; movsxd rax, DWORD [=>room]
            ; sub rsp, rax
            ; mov rax, rdx
        );
        let asked = usize::from(look == Look::Ahead);
        for (index, &register) in ADDRESSES.iter().enumerate().take(addresses + asked) {
            dynasm!(out ; .arch x64 ; mov Rq(register), [rdi + 8 * index as i32]);
        }
        let sums = FIRST_SUM..REGISTERS as u8;
        if sum.is_some() {
            sums.clone().for_each(|register| dynasm!(out ; .arch x64 ; vmovups Ry(register), [=>nothing]));
        }
        dynasm!(out ; .arch x64 ; .align 16 ; =>top);
        if look == Look::Ahead {
            let base = address(out, addresses);
            for line in 0..(lanes * 4 + LINE - 1) / LINE {
                let on = line * LINE;
                dynasm!(out ; .arch x64 ; prefetcht1 [Rq(base) + rax * 4 + on]);
            }
        }
        let (mut stack, mut constants) = (0, vec![(nothing, NOTHING)]);
        for part in parts {
            let registers = if sum.is_some() { FIRST_SUM as usize } else { REGISTERS };
            let mut turn = Loop::new(part, out, registers);
            turn.write();
            stack = stack.max(turn.stack);
            constants.append(&mut turn.constants);
        }
        dynasm!(out ; .arch x64 ; add rax, lanes ; cmp rax, rsi ; jb =>top);
        if results().any(|&(_, kept, ..)| kept == Kept::Streamed) {
            // Whoever reads on another thread finds these writes done, as any others.
            dynasm!(out ; .arch x64 ; sfence);
        }
        if let Some(index) = sum {
            let mut left = SUMS as u8;
            while left > 1 {
                left /= 2;
                for register in FIRST_SUM..FIRST_SUM + left {
                    dynasm!(out ; .arch x64 ; vaddps Ry(register), Ry(register), Ry(register + left));
                }
            }
            let base = address(out, index);
            dynasm!(out ; .arch x64 ; vmovups [Rq(base)], Ry(FIRST_SUM));
        }
        dynasm!(out ; .arch x64
            ; vzeroupper
            ; movsxd rax, DWORD [=>room]
            ; add rsp, rax
            ; pop r15 ; pop r14 ; pop r13 ; pop r12 ; pop rbp ; pop rbx
            ; ret
            ; .align 32
        );
        for &(label, bits) in &constants {
            dynasm!(out ; .arch x64 ; =>label);
            for _ in 0..8 {
                dynasm!(out ; .arch x64 ; .bytes bits.to_le_bytes());
            }
        }
        dynasm!(out ; .arch x64 ; =>room ; .bytes stack.to_le_bytes() ; .align 16);
        begin
    }

    /// The code, where the system lets memory be executed.
    pub(super) fn finish(self) -> Option<Code> {
        let bytes = self.0.finalize().ok()?;
        let mut memory = mmap::MutableBuffer::new(bytes.len()).ok()?;
        memory.set_len(bytes.len());
        memory.copy_from_slice(&bytes);
        memory.make_exec().ok().map(Code)
    }
}

impl Code {
    /// The function at an offset.
    ///
    /// # Safety
    ///
    /// The offset came from [`Assembler::add`] of this code.
    pub(super) unsafe fn entry(&self, offset: usize) -> Entry {
        // SAFETY: there begins a function of this type.
        unsafe { std::mem::transmute::<*const u8, Entry>(self.0.ptr(dynasmrt::AssemblyOffset(offset))) }
    }
}

/// Where an instruction finds an operand.
#[derive(Clone, Copy)]
enum Place {
    Register(u8),
    Constant(DynamicLabel),
    Spilled(i32),
    /// Behind an address: the same at every turn.
    Uniform(u8),
    /// Behind an address, at the turn's lanes, bytes further on.
    Along(u8, i32),
}

struct Loop<'a> {
    program: &'a Program,
    out: &'a mut VecAssembler<X64Relocation>,
    /// How many registers there are for values.
    registers: usize,
    /// The register that holds a value.
    register: Vec<Option<u8>>,
    /// The value that a register holds.
    holds: [Option<V>; REGISTERS],
    /// Where on the stack a value is.
    spilled: Vec<Option<i32>>,
    stack: i32,
    /// For each value, the positions that read it, the next one last.
    uses: Vec<Vec<usize>>,
    constants: Vec<(DynamicLabel, u32)>,
    label: Vec<Option<DynamicLabel>>,
    /// Registers that the operation in hand reads.
    pinned: [bool; REGISTERS],
    /// The one that it writes, while it holds no value yet.
    taken: Option<u8>,
}

/// An instruction of three operands, the last one anywhere.
macro_rules! three {
    ($self:ident, $op:ident, $to:expr, $a:expr, $place:expr) => {{
        let (to, a) = ($to, $a);
        match $place {
            Place::Register(b) => dynasm!($self.out ; .arch x64 ; $op Ry(to), Ry(a), Ry(b)),
            Place::Constant(label) => dynasm!($self.out ; .arch x64 ; $op Ry(to), Ry(a), [=>label]),
            Place::Spilled(at) => dynasm!($self.out ; .arch x64 ; $op Ry(to), Ry(a), [rsp + at]),
            Place::Uniform(base) => dynasm!($self.out ; .arch x64 ; $op Ry(to), Ry(a), [Rq(base)]),
            Place::Along(base, on) => dynasm!($self.out ; .arch x64 ; $op Ry(to), Ry(a), [Rq(base) + rax * 4 + on]),
        }
    }};
}

/// An instruction of two operands, the last one anywhere, and perhaps a constant.
macro_rules! two {
    ($self:ident, $op:ident, $to:expr, $place:expr $(, $constant:expr)?) => {{
        let to = $to;
        match $place {
            Place::Register(b) => dynasm!($self.out ; .arch x64 ; $op Ry(to), Ry(b) $(, $constant)?),
            Place::Constant(label) => dynasm!($self.out ; .arch x64 ; $op Ry(to), [=>label] $(, $constant)?),
            Place::Spilled(at) => dynasm!($self.out ; .arch x64 ; $op Ry(to), [rsp + at] $(, $constant)?),
            Place::Uniform(base) => dynasm!($self.out ; .arch x64 ; $op Ry(to), [Rq(base)] $(, $constant)?),
            Place::Along(base, on) => dynasm!($self.out ; .arch x64 ; $op Ry(to), [Rq(base) + rax * 4 + on] $(, $constant)?),
        }
    }};
}

impl<'a> Loop<'a> {
    fn new(program: &'a Program, out: &'a mut VecAssembler<X64Relocation>, registers: usize) -> Loop<'a> {
        let count = program.operations.len();
        let mut uses = vec![Vec::new(); count];
        for (position, &(value, ..)) in program.results.iter().enumerate().rev() {
            uses[value.0 as usize].push(count + position);
        }
        for (position, operation) in program.operations.iter().enumerate().rev() {
            for read in operation.reads() {
                let uses: &mut Vec<usize> = &mut uses[read.0 as usize];
                if uses.last() != Some(&position) {
                    uses.push(position);
                }
            }
        }
        Loop {
            program,
            out,
            registers,
            register: vec![None; count],
            holds: [None; REGISTERS],
            spilled: vec![None; count],
            stack: 0,
            uses,
            constants: Vec::new(),
            label: vec![None; count],
            pinned: [false; REGISTERS],
            taken: None,
        }
    }

    /// One turn.
    fn write(&mut self) {
        for position in 0..self.program.operations.len() {
            self.operation(position);
        }
        for position in 0..self.program.results.len() {
            self.result(position);
        }
    }

    fn operation(&mut self, position: usize) {
        self.pinned = [false; REGISTERS];
        let value = V(position as u32);
        match self.program.operations[position] {
            // Read where they are wanted.
            Operation::Input(..) | Operation::Flags(..) | Operation::Constant(_) => {}
            Operation::One(one, a) => match one {
                One::Sqrt => {
                    let (place, to) = self.one(position, a);
                    two!(self, vsqrtps, to, place);
                }
                One::Round(direction) => {
                    let (place, to) = self.one(position, a);
                    two!(self, vroundps, to, place, direction as i8 | 8);
                }
                One::ToFloat => {
                    let (place, to) = self.one(position, a);
                    two!(self, vcvtdq2ps, to, place);
                }
                One::ShiftLeft(by) => {
                    let from = self.in_register(a, position);
                    let to = self.result_register(position);
                    dynasm!(self.out ; .arch x64 ; vpslld Ry(to), Ry(from), by as i8);
                }
                One::ShiftRight(by) => {
                    let from = self.in_register(a, position);
                    let to = self.result_register(position);
                    dynasm!(self.out ; .arch x64 ; vpsrad Ry(to), Ry(from), by as i8);
                }
            },
            Operation::Two(two, a, b) => {
                let turned = two.commutes() && self.is_register(b) && !self.is_register(a);
                let (a, b) = if turned { (b, a) } else { (a, b) };
                let first = self.in_register(a, position);
                let second = self.place(b, position);
                let to = self.result_register(position);
                match two {
                    Two::Add => three!(self, vaddps, to, first, second),
                    Two::Sub => three!(self, vsubps, to, first, second),
                    Two::Mul => three!(self, vmulps, to, first, second),
                    Two::Div => three!(self, vdivps, to, first, second),
                    Two::Max => three!(self, vmaxps, to, first, second),
                    Two::Min => three!(self, vminps, to, first, second),
                    Two::And => three!(self, vandps, to, first, second),
                    Two::AndNot => three!(self, vandnps, to, first, second),
                    Two::Or => three!(self, vorps, to, first, second),
                    Two::Xor => three!(self, vxorps, to, first, second),
                    Two::IntAdd => three!(self, vpaddd, to, first, second),
                    Two::IntSub => three!(self, vpsubd, to, first, second),
                }
            }
            Operation::MulAdd(a, b, c) => self.multiply_add(position, a, b, c, Product::Added),
            Operation::NegMulAdd(a, b, c) => self.multiply_add(position, a, b, c, Product::Subtracted),
            Operation::Compare(predicate, a, b) => {
                let (first, second) = (self.in_register(a, position), self.in_register(b, position));
                let to = self.result_register(position);
                let code = compare(to, first, second, predicate);
                dynasm!(self.out ; .arch x64 ; .bytes code);
            }
            Operation::Blend { mask, yes, no } => {
                let no = self.in_register(no, position);
                let mask = self.in_register(mask, position);
                let yes = self.place(yes, position);
                let to = self.result_register(position);
                match yes {
                    Place::Register(yes) => {
                        dynasm!(self.out ; .arch x64 ; vblendvps Ry(to), Ry(no), Ry(yes), Ry(mask))
                    }
                    Place::Constant(label) => {
                        dynasm!(self.out ; .arch x64 ; vblendvps Ry(to), Ry(no), [=>label], Ry(mask))
                    }
                    Place::Spilled(at) => {
                        dynasm!(self.out ; .arch x64 ; vblendvps Ry(to), Ry(no), [rsp + at], Ry(mask))
                    }
                    Place::Uniform(base) => {
                        dynasm!(self.out ; .arch x64 ; vblendvps Ry(to), Ry(no), [Rq(base)], Ry(mask))
                    }
                    Place::Along(base, on) => {
                        dynasm!(self.out ; .arch x64 ; vblendvps Ry(to), Ry(no), [Rq(base) + rax * 4 + on], Ry(mask))
                    }
                }
            }
        }
        // A value that nobody reads is not kept.
        if self.uses[value.0 as usize].is_empty() {
            self.release(value);
        }
    }

    /// Operand and result of an operation on one vector.
    fn one(&mut self, position: usize, a: V) -> (Place, u8) {
        let place = self.place(a, position);
        (place, self.result_register(position))
    }

    /// `a * b + c` or `c - a * b`: the register of an operand that nobody reads later becomes the result's.
    fn multiply_add(&mut self, position: usize, a: V, b: V, c: V, product: Product) {
        let dies =
            |own: &Loop<'_>, value: V| own.register[value.0 as usize].is_some() && !own.is_read_after(value, position);
        if dies(self, c) {
            let (b, a) = if self.is_register(b) && !self.is_register(a) { (a, b) } else { (b, a) };
            let to = self.in_register(c, position);
            let first = self.in_register(a, position);
            let second = self.place(b, position);
            match product {
                Product::Added => three!(self, vfmadd231ps, to, first, second),
                Product::Subtracted => three!(self, vfnmadd231ps, to, first, second),
            }
            return self.take_over(c, position, to);
        }
        let (a, b) = if dies(self, b) && !dies(self, a) { (b, a) } else { (a, b) };
        let (to, factor) = if dies(self, a) {
            let to = self.in_register(a, position);
            (to, None)
        } else {
            let place = self.place(a, position);
            let to = self.free_register(position);
            self.taken = Some(to);
            (to, Some(place))
        };
        if let Some(place) = factor {
            two!(self, vmovups, to, place);
        }
        // Only one of the two others may be in memory.
        if self.is_register(b) || !self.is_register(c) {
            let second = self.in_register(b, position);
            let third = self.place(c, position);
            match product {
                Product::Added => three!(self, vfmadd213ps, to, second, third),
                Product::Subtracted => three!(self, vfnmadd213ps, to, second, third),
            }
        } else {
            let third = self.in_register(c, position);
            let second = self.place(b, position);
            match product {
                Product::Added => three!(self, vfmadd132ps, to, third, second),
                Product::Subtracted => three!(self, vfnmadd132ps, to, third, second),
            }
        }
        match factor {
            None => self.take_over(a, position, to),
            Some(_) => {
                self.drop_read(position);
                self.taken = None;
                self.settle(V(position as u32), to);
            }
        }
    }

    fn result(&mut self, index: usize) {
        self.pinned = [false; REGISTERS];
        let (value, kept, result, on) = self.program.results[index];
        let position = self.program.operations.len() + index;
        let from = self.in_register(value, position);
        if kept == Kept::Summed {
            let sum = FIRST_SUM + on;
            dynasm!(self.out ; .arch x64 ; vaddps Ry(sum), Ry(sum), Ry(from));
            return self.drop_value(value, position);
        }
        let base = address(self.out, self.program.operands.len() + result);
        let (bytes, lanes) = (VECTOR * i32::from(on), LANES * i32::from(on));
        match kept {
            Kept::Lanes => dynasm!(self.out ; .arch x64 ; vmovups [Rq(base) + rax * 4 + bytes], Ry(from)),
            Kept::Streamed => dynasm!(self.out ; .arch x64 ; vmovntps [Rq(base) + rax * 4 + bytes], Ry(from)),
            Kept::Flags => {
                let part = self.free_register(position);
                dynasm!(self.out ; .arch x64
                    ; vextractf128 Rx(part), Ry(from), 1
                    ; vpackssdw Rx(part), Rx(from), Rx(part)
                    ; vpacksswb Rx(part), Rx(part), Rx(part)
                    ; vpabsb Rx(part), Rx(part)
                    ; vmovq QWORD [Rq(base) + rax + lanes], Rx(part)
                );
            }
            Kept::Summed => unreachable!("a sum is in registers"),
        }
        self.drop_value(value, position);
    }

    fn is_register(&self, value: V) -> bool {
        self.register[value.0 as usize].is_some()
    }

    fn is_read_after(&self, value: V, position: usize) -> bool {
        self.uses[value.0 as usize].iter().any(|&read| read > position)
    }

    /// Where a value can be read by the operation at `position`: a register, or memory where no later operation wants it in one.
    fn place(&mut self, value: V, position: usize) -> Place {
        let index = value.0 as usize;
        if let Some(register) = self.register[index] {
            self.pinned[register as usize] = true;
            return Place::Register(register);
        }
        match self.program.operations[index] {
            Operation::Constant(bits) => Place::Constant(self.constant(value, bits)),
            // The spare register is good for one address at a time, so others are loaded.
            Operation::Input(operand, on) if operand < ADDRESSES.len() && !self.is_read_after(value, position) => {
                self.lanes_of(operand, on)
            }
            _ => match self.spilled[index] {
                Some(at) if !self.is_read_after(value, position) => Place::Spilled(at),
                _ => Place::Register(self.in_register(value, position)),
            },
        }
    }

    fn lanes_of(&mut self, operand: usize, on: u8) -> Place {
        let base = address(self.out, operand);
        match self.program.operands[operand] {
            Lies::Uniform => Place::Uniform(base),
            Lies::Along => Place::Along(base, VECTOR * i32::from(on)),
        }
    }

    fn constant(&mut self, value: V, bits: u32) -> DynamicLabel {
        let label = &mut self.label[value.0 as usize];
        *label.get_or_insert_with(|| {
            let label = self.out.new_dynamic_label();
            self.constants.push((label, bits));
            label
        })
    }

    /// Brings a value into a register, for the operation at `position`.
    fn in_register(&mut self, value: V, position: usize) -> u8 {
        let index = value.0 as usize;
        if let Some(register) = self.register[index] {
            self.pinned[register as usize] = true;
            return register;
        }
        let to = self.free_register(position);
        match self.program.operations[index] {
            Operation::Constant(bits) => {
                let place = Place::Constant(self.constant(value, bits));
                two!(self, vmovups, to, place);
            }
            Operation::Input(operand, on) => {
                let place = self.lanes_of(operand, on);
                two!(self, vmovups, to, place);
            }
            Operation::Flags(operand, on) => {
                // 1 becomes a mask of all bits: its negative.
                let base = address(self.out, operand);
                match self.program.operands[operand] {
                    Lies::Uniform => dynasm!(self.out ; .arch x64 ; vmovq Rx(to), QWORD [Rq(base)]),
                    Lies::Along => {
                        let on = LANES * i32::from(on);
                        dynasm!(self.out ; .arch x64 ; vmovq Rx(to), QWORD [Rq(base) + rax + on]);
                    }
                }
                dynasm!(self.out ; .arch x64 ; vpmovzxbd Ry(to), Rx(to) ; vpslld Ry(to), Ry(to), 31 ; vpsrad Ry(to), Ry(to), 31);
            }
            _ => {
                let at = self.spilled[index].expect("a value is in a register or on the stack");
                dynasm!(self.out ; .arch x64 ; vmovups Ry(to), [rsp + at]);
            }
        }
        self.settle(value, to);
        self.pinned[to as usize] = true;
        to
    }

    /// The result's register, once the operands are read.
    fn result_register(&mut self, position: usize) -> u8 {
        self.drop_read(position);
        let to = self.free_register(position);
        self.settle(V(position as u32), to);
        to
    }

    /// Gives up the operands that no later operation reads.
    fn drop_read(&mut self, position: usize) {
        let reads: Vec<V> = self.program.operations[position].reads().collect();
        for read in reads {
            self.drop_value(read, position);
        }
    }

    fn drop_value(&mut self, value: V, position: usize) {
        let uses = &mut self.uses[value.0 as usize];
        uses.retain(|&read| read > position);
        if uses.is_empty() {
            self.release(value);
        }
    }

    fn release(&mut self, value: V) {
        if let Some(register) = self.register[value.0 as usize].take() {
            self.holds[register as usize] = None;
        }
    }

    fn settle(&mut self, value: V, register: u8) {
        self.register[value.0 as usize] = Some(register);
        self.holds[register as usize] = Some(value);
    }

    /// The result lies where an operand was.
    fn take_over(&mut self, operand: V, position: usize, register: u8) {
        self.drop_read(position);
        debug_assert!(self.register[operand.0 as usize].is_none(), "nobody reads it later");
        self.settle(V(position as u32), register);
    }

    /// A register that holds nothing any more; operands of the operation in hand stay where they are.
    fn free_register(&mut self, position: usize) -> u8 {
        let free = |register: &u8| self.holds[*register as usize].is_none() && self.taken != Some(*register);
        if let Some(register) = (0..self.registers as u8).find(free) {
            return register;
        }
        let next = |register: &usize| {
            let value = self.holds[*register].expect("all registers are in use");
            self.uses[value.0 as usize].iter().copied().filter(|&read| read >= position).min().unwrap_or(usize::MAX)
        };
        let holding = |register: &usize| !self.pinned[*register] && self.holds[*register].is_some();
        let chosen = (0..self.registers).filter(holding).max_by_key(next);
        let register = chosen.expect("an operation has fewer operands than there are registers");
        let value = self.holds[register].take().expect("all registers are in use");
        self.register[value.0 as usize] = None;
        let again = matches!(
            self.program.operations[value.0 as usize],
            Operation::Constant(_) | Operation::Input(..) | Operation::Flags(..)
        );
        if !again && self.spilled[value.0 as usize].is_none() {
            let at = self.stack;
            self.stack += VECTOR;
            self.spilled[value.0 as usize] = Some(at);
            dynasm!(self.out ; .arch x64 ; vmovups [rsp + at], Ry(register as u8));
        }
        register as u8
    }
}

/// The general register with an address of the table.
fn address(out: &mut VecAssembler<X64Relocation>, index: usize) -> u8 {
    match ADDRESSES.get(index) {
        Some(&register) => register,
        None => {
            dynasm!(out ; .arch x64 ; mov Rq(SPARE), [rdi + 8 * index as i32]);
            SPARE
        }
    }
}

/// `vcmpps to, first, second, predicate`, byte by byte: the assembler takes its operands in another order.
fn compare(to: u8, first: u8, second: u8, predicate: Predicate) -> [u8; 6] {
    let extended = |register: u8| register >= 8;
    let high = u8::from(!extended(to)) << 7 | 1 << 6 | u8::from(!extended(second)) << 5 | 1;
    let middle = (!first & 15) << 3 | 1 << 2;
    [0xc4, high, middle, 0xc2, 0xc0 | (to & 7) << 3 | second & 7, predicate as u8]
}

/// What becomes of a product.
#[derive(Clone, Copy)]
enum Product {
    Added,
    Subtracted,
}
