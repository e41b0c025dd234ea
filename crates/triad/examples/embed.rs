//! Embeds two texts and prints their cosine: `cargo run --release --example embed -p triad`

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = triad::Model::open("smollm2-135m")?;
    let one = model.embed("A cat sleeps on the sofa.")?;
    let other = model.embed("A kitten naps on the couch.")?;
    let cosine: f32 = one.iter().zip(&other).map(|(a, b)| a * b).sum();
    println!("{cosine:.3}");
    Ok(())
}
