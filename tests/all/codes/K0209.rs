use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let text = r#"kiln 1
graph @f(%0 "x": f32[2] @cpu) {
  %1 = custom "twice" %0 : f32[2] @cpu
  return %1 "y"
}
"#;
    kiln::compile(&kiln::ir::parse(text)?, &Device::cpu())?;
    Ok(())
}
