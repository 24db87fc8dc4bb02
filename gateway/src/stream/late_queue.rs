//! A queue that is made when it is first needed: most of what an idle session would hold is queues.

use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Sender and receiver.
type Ends<T> = (Sender<Box<T>>, Receiver<Box<T>>);

/// A bounded queue with both of its ends here. What it carries travels in boxes: a channel takes room for
/// 32 messages when it is made.
#[derive(Debug)]
pub(super) struct LateQueue<T> {
    bound: usize,
    ends: Option<Ends<T>>,
}

impl<T> LateQueue<T> {
    pub(super) const fn new(bound: usize) -> Self {
        Self { bound, ends: None }
    }

    /// A sender into it.
    pub(super) fn sender(&mut self) -> Sender<Box<T>> {
        self.ends.get_or_insert_with(|| channel(self.bound)).0.clone()
    }

    /// The next message; never, while there is none. Nothing is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> Box<T> {
        // The sender beside it keeps the queue open.
        match &mut self.ends {
            Some((_, receiver)) => match receiver.recv().await {
                Some(message) => message,
                None => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }
}
