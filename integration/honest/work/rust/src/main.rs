//! What a small program of an agent looks like: a procedural macro of its own, and what its build script made.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use derive::Named;

include!(concat!(env!("OUT_DIR"), "/made.rs"));

extern "C" {
    fn twice(n: i32) -> i32;
}

#[derive(Named)]
struct Thing;

fn over_the_network(word: &str) -> String {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let echo = thread::spawn(move || {
        let (mut peer, _) = server.accept().unwrap();
        let mut text = String::new();
        peer.read_to_string(&mut text).unwrap();
        text.to_uppercase()
    });
    TcpStream::connect(address).unwrap().write_all(word.as_bytes()).unwrap();
    echo.join().unwrap()
}

fn main() {
    let (send, receive) = mpsc::channel();
    for n in 0..8 {
        let send = send.clone();
        thread::spawn(move || send.send(n).unwrap());
    }
    drop(send);
    let sum: i32 = receive.iter().sum();
    println!("{} {} {MADE} {sum} {}", Thing::name(), unsafe { twice(21) }, over_the_network("tcp"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_macro_names_it() {
        assert_eq!(Thing::name(), "Thing");
    }

    #[test]
    fn c_is_linked() {
        assert_eq!(unsafe { twice(2) }, 4);
    }

    #[test]
    #[should_panic(expected = "unwound")]
    fn a_panic_unwinds() {
        panic!("unwound");
    }
}
