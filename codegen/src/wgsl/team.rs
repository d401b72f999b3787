//! Teams: invocations of a workgroup that walk one inner space side by side, and meet to combine what they have folded.
//!
//! Where the device has subgroups, their lanes exchange values directly, a power of two of them at a time that every subgroup holds; what is
//! left goes through workgroup memory. All invocations of a workgroup pass the same barriers, those without a point of their own as well. Every
//! lane of a team ends with the same bits.

use kiln_ir::Diagnostic;
use kiln_ir::gpu::GpuTarget;

use super::block::{Scope, Value};
use super::fold::{Accumulator, Number};
use super::module::{Module, Subgroups};
use super::types::Held;
use super::walk::{Step, Walk, coordinates};
use super::writer::Writer;

/// Values of a row that a lane keeps in registers from one stage to the next, at most.
const KEPT: usize = 16;

/// The teams of a workgroup.
#[derive(Clone, Debug)]
pub(super) struct Team {
    /// Invocations of a team.
    pub(super) lanes: u32,
    /// Teams of a workgroup.
    pub(super) teams: u32,
    /// Inner neighbours that a lane takes at once.
    pub(super) width: u32,
    prefix: String,
    /// Lanes that exchange values directly; 1 where none do.
    direct: u32,
}

impl Team {
    pub(super) fn new(lanes: u32, teams: u32, width: u32, prefix: &str, target: &GpuTarget) -> Team {
        let direct = match target.subgroup {
            // Subgroups are full where they divide the workgroup.
            Some((least, most)) if (lanes * teams).is_multiple_of(most.max(1)) => least.clamp(1, lanes),
            _ => 1,
        };
        Team { lanes, teams, width, prefix: prefix.to_owned(), direct }
    }

    pub(super) fn subgroups(&self) -> Subgroups {
        if self.direct > 1 { Subgroups::Used } else { Subgroups::Unused }
    }

    /// Which lane of which team this is.
    pub(super) fn declare(&self, w: &mut Writer) {
        let number = if self.direct > 1 {
            // Neighbours in a subgroup are neighbours in a team, however the device numbers invocations.
            w.line("let member = i32(subgroup_id * subgroup_size + subgroup_lane);");
            "member"
        } else {
            "local"
        };
        if self.teams == 1 {
            w.line(format!("let lane = {number};"));
        } else {
            w.line(format!("let team = {number} / {};", self.lanes));
            w.line(format!("let lane = {number} % {};", self.lanes));
        }
    }

    /// The condition under which a lane stores what its team has once.
    pub(super) fn first_lane(&self, live: Option<&str>) -> String {
        ["lane == 0"].into_iter().chain(live).collect::<Vec<_>>().join(" && ")
    }

    /// How the lanes walk a space: few steps are written out.
    pub(super) fn walk(&self, w: &mut Writer, inner: &[usize], scope: &Scope) -> Walk {
        let (count, width) = (inner.iter().product::<usize>(), self.width as usize);
        let stride = self.lanes as usize * width;
        let steps = count.div_ceil(stride);
        let first = if width == 1 { "lane".to_owned() } else { format!("lane * {width}") };
        if count < width || steps == 0 || steps * width > KEPT {
            return Walk::flat(&first, &count.to_string(), stride as u32, self.width, count);
        }
        let mut all = Vec::new();
        for step in 0..steps {
            let own = if step == 0 { first.clone() } else { format!("{first} + {}", step * stride) };
            let whole = (step + 1) * stride <= count;
            let guard = (!whole).then(|| {
                let guard = w.fresh("inside");
                w.line(format!("let {guard} = {own} < {count};"));
                guard
            });
            // A step beyond the end computes the last points once more and does not count them.
            let index = w.fresh("k");
            let own = if whole { own } else { format!("min({own}, {})", count - width) };
            w.line(format!("let {index} = {own};"));
            let coordinates = coordinates(w, &index, inner, 1, "j");
            let mut scope = scope.clone();
            if steps > 1 {
                scope.suffix = format!("_{step}");
            }
            scope.remember();
            all.push(Step { index, guard, width: self.width, scope, coordinates });
        }
        Walk::Steps(all)
    }
}

/// Combines what the lanes of each team have accumulated; all lanes have the result.
pub(super) fn combine(
    module: &mut Module<'_>,
    w: &mut Writer,
    team: &Team,
    all: &[Accumulator],
) -> Result<Vec<Accumulator>, Diagnostic> {
    for accumulator in all {
        let mut together = 1;
        let can_shuffle = |held: Held| match held {
            Held::F32 | Held::I32 | Held::U32 | Held::Bool => true,
            Held::F64 | Held::I64 => false,
        };
        if accumulator.numbers.iter().all(|number| can_shuffle(number.held)) {
            while together < team.direct {
                let mut taken = Vec::new();
                for number in &accumulator.numbers {
                    let name = w.fresh("other");
                    let text = match number.held {
                        Held::Bool => format!("subgroupShuffleXor(u32({}), {together}u) != 0u", number.name),
                        Held::F32 | Held::F64 | Held::I32 | Held::U32 | Held::I64 => {
                            format!("subgroupShuffleXor({}, {together}u)", number.name)
                        }
                    };
                    w.line(format!("let {name} = {text};"));
                    taken.push(Value::new(name, number.held, 1));
                }
                accumulator.take(module, w, &taken)?;
                together *= 2;
            }
        }
        if together < team.lanes {
            through_memory(module, w, team, accumulator, together)?;
        }
    }
    Ok(all.to_vec())
}

/// Combines groups of `together` lanes, which have the same numbers, through workgroup memory.
fn through_memory(
    module: &mut Module<'_>,
    w: &mut Writer,
    team: &Team,
    accumulator: &Accumulator,
    together: u32,
) -> Result<(), Diagnostic> {
    let in_team = team.lanes / together;
    let memory: Vec<String> = accumulator
        .numbers
        .iter()
        .enumerate()
        .map(|(place, number)| {
            // Bools are words in memory: some drivers lose them in workgroup memory.
            let element = number.held.in_scratch();
            let name = format!("{}shared{place}_{element}", team.prefix);
            let ty = format!("array<{element}, {}>", team.teams * in_team);
            module.workgroup(&name, ty);
            name
        })
        .collect();
    let base = match (team.teams, in_team) {
        (1, _) => String::new(),
        (_, in_team) => format!("team * {in_team} + "),
    };
    let read = |place: &str| -> Vec<Value> {
        let numbers = memory.iter().zip(&accumulator.numbers);
        let one = |(name, number): (&String, &Number)| {
            let element = format!("{name}[{base}{place}]");
            let text = if number.held == Held::Bool { format!("({element} != 0u)") } else { element };
            Value::new(text, number.held, 1)
        };
        numbers.map(one).collect()
    };
    let write = |w: &mut Writer, place: &str| {
        for (name, number) in memory.iter().zip(&accumulator.numbers) {
            let value = if number.held == Held::Bool { format!("u32({})", number.name) } else { number.name.clone() };
            w.line(format!("{name}[{base}{place}] = {value};"));
        }
    };
    let set = |w: &mut Writer, values: &[Value]| {
        for (number, value) in accumulator.numbers.iter().zip(values) {
            w.line(format!("{} = {};", number.name, value.text));
        }
    };
    if together > 1 {
        w.open(format!("if lane % {together} == 0"));
        write(w, &format!("lane / {together}"));
        w.close();
        w.line("workgroupBarrier();");
        set(w, &read("0"));
        w.open(format!("for (var other = 1; other < {in_team}; other++)"));
        accumulator.take(module, w, &read("other"))?;
        w.close();
    } else {
        write(w, "lane");
        w.line("workgroupBarrier();");
        w.open(format!("for (var half = {}; half > 0; half /= 2)", in_team / 2));
        w.open("if lane < half");
        accumulator.take(module, w, &read("lane + half"))?;
        write(w, "lane");
        w.close();
        w.line("workgroupBarrier();");
        w.close();
        set(w, &read("0"));
    }
    // The memory is used again.
    w.line("workgroupBarrier();");
    Ok(())
}
