//! Schedules in words, for reports.

use std::fmt;

use super::{
    AttentionSchedule, LoopSchedule, MatMulSchedule, MatMulSpread, ScanSchedule, ScatterSchedule, Schedule, Tile,
    WarpAttention, WarpTile,
};

/// `256 invocations, 4 points each`.
///
/// ```
/// use kiln_ir::gpu::{LoopSchedule, Schedule};
/// let schedule = Schedule::Loop(LoopSchedule::Team { lanes: 32, teams: 8, width: 4 });
/// assert_eq!(schedule.to_string(), "8 teams of 32, 4 elements at once");
/// ```
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Loop(schedule) => schedule.fmt(f),
            Schedule::Horizontal(parts) => {
                for (index, part) in parts.iter().enumerate() {
                    if index > 0 {
                        f.write_str(" | ")?;
                    }
                    part.fmt(f)?;
                }
                Ok(())
            }
            Schedule::MatMul(schedule) => schedule.fmt(f),
            Schedule::Attention(schedule) => schedule.fmt(f),
            Schedule::WarpAttention(schedule) => schedule.fmt(f),
            Schedule::Scan(schedule) => schedule.fmt(f),
            Schedule::Scatter(schedule) => schedule.fmt(f),
            Schedule::Custom => f.write_str("its own text's"),
        }
    }
}

impl fmt::Display for LoopSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoopSchedule::Points { workgroup, width } => write!(f, "{workgroup} invocations, {width} points each"),
            LoopSchedule::Team { lanes, teams, width } => {
                write!(f, "{teams} teams of {lanes}, {width} elements at once")
            }
            LoopSchedule::Split { parts, part, whole } => write!(f, "{parts} parts ({part}), then joined ({whole})"),
        }
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tile { extents: [rows, columns], registers: [own_rows, own_columns], depth } = self;
        write!(f, "{rows}x{columns} by {depth}, {own_rows}x{own_columns} an invocation")
    }
}

impl fmt::Display for MatMulSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.spread {
            MatMulSpread::Tiles { tile } => write!(f, "tiles of {tile}")?,
            MatMulSpread::Thin { points, lanes, .. } => write!(f, "{points} points, {lanes} invocations each")?,
        }
        if self.splits > 1 { write!(f, ", {} parts of the sum", self.splits) } else { Ok(()) }
    }
}

impl fmt::Display for AttentionSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scores {}; values {}; depths {}", self.scores, self.values, self.depths)
    }
}

impl fmt::Display for WarpTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of {} warps by {}", self.own(), self.warps, self.step)
    }
}

impl fmt::Display for WarpAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queries {}; keys {}", self.rows, self.keys)
    }
}

impl fmt::Display for ScanSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} teams of {}, {} elements each", self.teams, self.lanes, self.width)
    }
}

impl fmt::Display for ScatterSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScatterSchedule::Walk { workgroup } => write!(f, "{workgroup} invocations, each in order"),
            ScatterSchedule::Sort { workgroup, ways, .. } => {
                write!(f, "sorted by {workgroup}, {ways} runs merged at once")
            }
        }
    }
}
