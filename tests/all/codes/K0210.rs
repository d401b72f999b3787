use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    try_concat(&[], 0)?;
    Ok(())
}
