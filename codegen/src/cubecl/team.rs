//! Teams: threads of a block that walk one inner space side by side, and meet to combine what they have folded.
//!
//! Lanes of a warp exchange values directly; what is left goes through shared memory. All threads of a block pass the same barriers, those
//! without a point of their own as well. Every lane of a team ends with the same bits.

use super::builder::{Builder, Term, Ty};
use super::fold::{Numbers, Rule};

/// Lanes of a warp.
const WARP: u32 = 32;

/// The teams of a block, and which lane of which team this thread is.
#[derive(Clone, Debug)]
pub(super) struct Team {
    /// Threads of a team; a power of two.
    pub(super) lanes: u32,
    /// Inner neighbours that a lane takes at once.
    pub(super) width: u32,
    /// Which lane this is.
    pub(super) lane: Term,
    /// Which team.
    pub(super) team: Term,
}

impl Team {
    /// Of a block of `lanes * teams` threads.
    pub(super) fn new(b: &mut Builder, thread: &Term, lanes: u32, width: u32) -> Team {
        let threads = std::slice::from_ref(thread);
        let (lane, team) = if lanes == b.threads() {
            (thread.clone(), Term::constant("0"))
        } else {
            (
                b.expression(Ty::Index, &format!("$0 % {lanes}"), threads),
                b.expression(Ty::Index, &format!("$0 / {lanes}"), threads),
            )
        };
        Team { lanes, width, lane, team }
    }

    /// Whether this lane stores what its team has once.
    pub(super) fn is_first(&self, b: &mut Builder) -> Term {
        b.expression(Ty::Bool, "$0 == 0", std::slice::from_ref(&self.lane))
    }

    /// What all lanes of the team have accumulated, at every lane.
    pub(super) fn combine(&self, b: &mut Builder, rule: &Rule, numbers: &Numbers) -> Vec<Term> {
        let mut mine = rule.values(b, numbers);
        let mut together = 1;
        if b.threads().is_multiple_of(WARP) {
            while together < self.lanes.min(WARP) {
                let other: Vec<Term> =
                    mine.iter().zip(&rule.types).map(|(term, ty)| exchange(b, *ty, term, together)).collect();
                mine = rule.both(b, &mine, &other);
                together *= 2;
            }
        }
        if together < self.lanes {
            mine = self.through_memory(b, rule, &mine, together);
        }
        mine
    }

    /// Combines groups of `together` lanes, which have the same numbers, through shared memory.
    fn through_memory(&self, b: &mut Builder, rule: &Rule, mine: &[Term], together: u32) -> Vec<Term> {
        let in_team = self.lanes / together;
        let slots = b.threads() / together;
        let memory: Vec<u32> = rule.types.iter().map(|ty| b.share(slots * ty.size() as u32)).collect();
        let base = [(self.team.clone(), i64::from(in_team))];
        let base = super::space::sum(b, 0, &base);
        let lane = std::slice::from_ref(&self.lane);
        let group = b.expression(Ty::Index, &format!("$0 / {together}"), lane);
        let slot = super::space::sum(b, 0, &[(base.clone(), 1), (group, 1)]);
        if together > 1 {
            let writes = b.expression(Ty::Bool, &format!("$0 % {together} == 0"), lane);
            b.open_if(&writes);
        }
        for ((begin, ty), term) in memory.iter().zip(&rule.types).zip(mine) {
            b.shared_store(*begin, *ty, &slot, term);
        }
        if together > 1 {
            b.close();
        }
        b.barrier();
        let read = |b: &mut Builder, other: &Term| -> Vec<Term> {
            let at = super::space::sum(b, 0, &[(base.clone(), 1), (other.clone(), 1)]);
            memory.iter().zip(&rule.types).map(|(begin, ty)| b.shared_load(*begin, *ty, &at)).collect()
        };
        let first = read(b, &Term::constant("0"));
        if in_team <= WARP {
            return (1..in_team).fold(first, |all, other| {
                let other = read(b, &Term::constant(other.to_string()));
                rule.both(b, &all, &other)
            });
        }
        let all: Numbers = rule.types.iter().zip(&first).map(|(ty, term)| b.variable(*ty, term)).collect();
        let bounds = ["1".to_owned(), in_team.to_string()].map(Term::constant);
        let other = b.open_loop(&bounds[0], &bounds[1], &Term::constant("1"));
        let taken = read(b, &other);
        rule.take(b, &all, &taken, None);
        b.close();
        rule.values(b, &all)
    }
}

/// The number of the lane whose own differs in one bit.
fn exchange(b: &mut Builder, ty: Ty, term: &Term, mask: u32) -> Term {
    let template = match ty {
        Ty::Bool => format!("__shfl_xor_sync(0xffffffffu, int($0), {mask}) != 0"),
        Ty::F32 | Ty::F64 | Ty::I32 | Ty::I64 | Ty::U8 | Ty::U16 | Ty::U32 | Ty::U64 | Ty::Index => {
            format!("__shfl_xor_sync(0xffffffffu, $0, {mask})")
        }
    };
    b.observe(ty, &template, std::slice::from_ref(term))
}
