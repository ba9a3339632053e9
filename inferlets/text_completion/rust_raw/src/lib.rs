//! Text completion from the raw API, as in the Pie paper's section 4.2: what the SDK does inside.
//!
//! Options: `--prompt TEXT`, `--max-tokens N` (64), `--temperature T` (0: greedy), `--seed N`.

use inferlet::allocate::{alloc_emb, alloc_kvpage, dealloc_emb, dealloc_kvpage};
use inferlet::forward::forward;
use inferlet::runtime::{available_models, create_queue, destroy_queue};
use inferlet::stream::TextDecoder;
use inferlet::text::{embed_txt, get_next_dist, tokenize};
use inferlet::{session, Args, Distribution, Error, Model, Random, Result, DISTRIBUTION_SIZE};

#[inferlet::main]
async fn main(mut args: Args) -> Result {
    let prompt: String = args.value_from_str(["-p", "--prompt"])?;
    let max_tokens: u32 = args.opt_value_from_str(["-n", "--max-tokens"])?.unwrap_or(64);
    let temperature: f32 = args.opt_value_from_str(["-t", "--temperature"])?.unwrap_or(0.0);
    let seed: Option<u64> = args.opt_value_from_str("--seed")?;
    args.finish()?;
    if !(0.0..=f32::MAX).contains(&temperature) {
        return Err(Error::usage("--temperature is 0 (greedy) or above"));
    }
    let mut random = seed.map_or_else(Random::from_host, |seed| Ok(Random::seeded(seed)))?;

    let model = Model::named(&available_models()[0])?;
    let queue = create_queue(model.name())?;
    let mut prompt_tokens = tokenize(model.name(), &prompt)?;
    if let Some(bos) = model.bos_token().filter(|bos| prompt_tokens.first() != Some(bos)) {
        prompt_tokens.insert(0, bos);
    }
    let prompt_length = prompt_tokens.len() as u32;
    let limit = prompt_length.saturating_add(max_tokens).min(model.max_position());

    // Resource allocation
    let page_size = model.page_size();
    let pages = [alloc_kvpage(queue, limit.div_ceil(page_size))?, limit.div_ceil(page_size)];
    let embed = [alloc_emb(queue, 1)?, 1];

    // Prefill, in chunks of what one forward takes. Only the last token's hidden state is wanted.
    let mut position = 0;
    for chunk in prompt_tokens.chunks(model.max_batch_tokens() as usize) {
        let count = chunk.len() as u32;
        let embeds = [alloc_emb(queue, count)?, count];
        let last = position + count == prompt_length;
        embed_txt(queue, chunk, &[position, count], &embeds)?;
        forward(queue, &pages, &embeds, &pages, if last { &embed } else { &[] }, &[])?;
        dealloc_emb(queue, &embeds)?;
        position += count;
    }

    // Decode
    let candidates = if temperature == 0.0 { 1 } else { DISTRIBUTION_SIZE };
    let mut decoder = TextDecoder::new(model.tokenizer(), &prompt_tokens)?;
    while position < limit {
        let distribution = get_next_dist(queue, embed[0], candidates).await?;
        let token = choose(&distribution, temperature, &mut random);
        if model.stop_tokens().contains(&token) {
            break;
        }
        send(&decoder.feed(token)?).await?;
        position += 1;
        if position < limit {
            embed_txt(queue, &[token], &[position - 1, 1], &embed)?;
            forward(queue, &pages, &embed, &pages, &embed, &[])?;
        }
    }
    send(&decoder.finish()?).await?;

    // Resource cleanup
    dealloc_emb(queue, &embed)?;
    dealloc_kvpage(queue, &pages)?;
    destroy_queue(queue)
}

/// Streams a piece of text. It is empty while a token has not completed its character.
async fn send(text: &str) -> Result {
    match text {
        "" => Ok(()),
        text => session::stream(text).await,
    }
}

/// The likeliest token at temperature 0; otherwise one by its probability, after temperature.
fn choose(distribution: &Distribution, temperature: f32, random: &mut Random) -> u32 {
    if temperature == 0.0 {
        return distribution.max_index();
    }
    let best = distribution.probabilities[0];
    let weigh = |probability: &f32| (probability / best).powf(1.0 / temperature);
    let weights: Vec<f32> = distribution.probabilities.iter().map(weigh).collect();
    let mut left = random.uniform() as f32 * weights.iter().sum::<f32>();
    for (token, weight) in distribution.tokens.iter().zip(weights) {
        left -= weight;
        if left < 0.0 {
            return *token;
        }
    }
    distribution.max_index()
}
