//! What all sources say together.

use std::collections::HashSet;

use crate::backends::Member;

/// The union by address, in the order of the sources: of an address that is named twice the first word counts.
pub(super) fn wanted(sources: &[(String, Vec<Member>)]) -> Vec<Member> {
    let mut seen = HashSet::new();
    let mut wanted = Vec::new();
    for (source, members) in sources {
        for member in members {
            if seen.insert(member.addr) {
                wanted.push(member.clone());
            } else {
                let backend = member.config.spec.url.as_str();
                tracing::warn!(backend, addr = %member.addr, source, "this address is already a backend");
            }
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::wanted;
    use crate::backends::Member;
    use crate::config::backend;

    fn member(text: &str) -> Member {
        let config = backend::parse(text, &|_| Ok("k".to_owned())).unwrap();
        let addr = format!("{}:{}", config.host, config.port).parse().unwrap();
        Member { config, addr }
    }

    #[test]
    fn of_an_address_named_twice_the_first_word_counts() {
        let sources = [
            ("a".to_owned(), vec![member("http://10.0.0.1:1,model=first"), member("http://10.0.0.2:1")]),
            ("b".to_owned(), vec![member("http://10.0.0.1:1,model=second"), member("http://10.0.0.1:2")]),
        ];
        let all = wanted(&sources);
        let addrs: Vec<_> = all.iter().map(|m| m.addr.to_string()).collect();
        assert_eq!(addrs, ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.1:2"]);
        assert_eq!(all[0].config.spec.model.as_deref(), Some("first"));
    }
}
