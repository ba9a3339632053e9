//! Results of calls as JSON.

use inferlet::http::Response;
use inferlet::json::quote;
use inferlet::messaging::Subscription;
use inferlet::text::Encoded;
use inferlet::{Attention, Distribution, HostFuture, Result, Sampled};

/// A value that JSON can say.
pub trait Json {
    fn json(&self) -> String;
}

/// What a function of the SDK returns: a value, a value or an error, or a future's handle.
pub trait Reply {
    fn reply(self) -> Result<String>;
}

impl<T: Json> Reply for T {
    fn reply(self) -> Result<String> {
        Ok(self.json())
    }
}

impl<T: Json> Reply for Result<T> {
    fn reply(self) -> Result<String> {
        self.map(|value| value.json())
    }
}

impl<T> Reply for HostFuture<T> {
    fn reply(self) -> Result<String> {
        self.into_handle().map(|handle| handle.json())
    }
}

impl Reply for Result<Subscription> {
    fn reply(self) -> Result<String> {
        self.map(|subscription| subscription.into_handle().json())
    }
}

impl Reply for Result<Response> {
    fn reply(self) -> Result<String> {
        let response = self?;
        let (status, headers) = (response.status().json(), response.headers().to_vec().json());
        Ok(format!("[{status},{headers},{}]", response.into_body()?))
    }
}

impl Json for () {
    fn json(&self) -> String {
        "null".into()
    }
}

macro_rules! displayed {
    ($($kind:ty)*) => {
        $(impl Json for $kind {
            fn json(&self) -> String {
                self.to_string()
            }
        })*
    };
}

displayed!(bool u8 u32 u64);

impl Json for f32 {
    fn json(&self) -> String {
        match self.is_finite() {
            true => self.to_string(),
            false => "null".into(),
        }
    }
}

impl Json for String {
    fn json(&self) -> String {
        quote(self)
    }
}

impl<T: Json> Json for Vec<T> {
    fn json(&self) -> String {
        let items: Vec<String> = self.iter().map(Json::json).collect();
        format!("[{}]", items.join(","))
    }
}

impl<A: Json, B: Json> Json for (A, B) {
    fn json(&self) -> String {
        format!("[{},{}]", self.0.json(), self.1.json())
    }
}

impl<A: Json, B: Json, C: Json> Json for (A, B, C) {
    fn json(&self) -> String {
        format!("[{},{},{}]", self.0.json(), self.1.json(), self.2.json())
    }
}

impl Json for Distribution {
    fn json(&self) -> String {
        format!("[{},{}]", self.tokens.json(), self.probabilities.json())
    }
}

impl Json for Attention {
    fn json(&self) -> String {
        format!("[{},{}]", self.rows, self.numbers.json())
    }
}

impl Json for Encoded {
    fn json(&self) -> String {
        format!("[{},{}]", self.tokens, self.numbers.json())
    }
}

impl Json for Sampled {
    fn json(&self) -> String {
        format!(
            "[{},{},{},{}]",
            self.token.json(),
            self.logprob.json(),
            self.top_tokens.json(),
            self.top_logprobs.json(),
        )
    }
}
