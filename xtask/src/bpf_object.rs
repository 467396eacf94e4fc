//! Strips a BPF object: the DWARF sections go, code, maps, symbols, `.BTF` and `.BTF.ext` stay.
//!
//! Done here and not by `llvm-strip`, whose version differs between machines while the result has to be the same
//! bit for bit. Invariant: what the kernel and loaders read is unchanged.

use anyhow::{Context, Result, bail};
use object::build::elf::{Builder, SectionData};
use object::elf::SHT_STRTAB;

/// `elf` without its debug sections.
///
/// # Errors
/// When it is not an ELF file, or has no `.BTF`, without which maps have no field names.
pub(crate) fn strip(elf: &[u8]) -> Result<Vec<u8>> {
    let mut builder = Builder::read(elf).context("the linker's output is not an ELF object")?;
    let has_btf = builder.sections.iter().any(|section| section.name.as_slice() == b".BTF");
    if !has_btf {
        bail!("the object has no .BTF section: the crate was built without debug information");
    }
    let mut gone = Vec::new();
    for section in &mut builder.sections {
        let name = section.name.as_slice();
        if name.starts_with(b".debug_") || name.starts_with(b".rel.debug_") {
            section.delete = true;
            gone.push(section.id());
        }
    }
    for symbol in &mut builder.symbols {
        if symbol.section.is_some_and(|section| gone.contains(&section)) {
            symbol.delete = true;
        }
    }
    // A relocation section of a deleted one goes with it; any other may not refer to what is gone.
    builder.delete_orphans();
    let dangling =
        builder.sections.iter().filter(|section| !section.delete).any(|section| match &section.data {
            SectionData::Relocation(relocations) => relocations
                .iter()
                .any(|relocation| relocation.symbol.is_some_and(|id| builder.symbols.get(id).delete)),
            _ => false,
        });
    if dangling {
        bail!("a kept section refers to a debug section");
    }
    add_section_names(&mut builder);
    let mut stripped = Vec::new();
    builder.write(&mut stripped).context("the stripped object cannot be written")?;
    Ok(stripped)
}

/// LLVM keeps the names of sections and symbols in one table, which the writer does not do.
fn add_section_names(builder: &mut Builder<'_>) {
    if builder.sections.iter().any(|section| matches!(section.data, SectionData::SectionString)) {
        return;
    }
    let section = builder.sections.add();
    section.name = b".shstrtab".as_slice().into();
    section.sh_type = SHT_STRTAB;
    section.sh_addralign = 1;
    section.data = SectionData::SectionString;
}

#[cfg(test)]
mod tests {
    use object::elf::SHT_PROGBITS;

    use super::*;

    /// An object with the named sections; LLVM's has no `.shstrtab` either.
    fn object_with(names: &[&str]) -> Vec<u8> {
        let mut builder = Builder::new(object::Endianness::Little, true);
        for name in names {
            let section = builder.sections.add();
            section.name = name.as_bytes().into();
            section.sh_type = SHT_PROGBITS;
            section.data = SectionData::Data(b"bytes".as_slice().into());
        }
        add_section_names(&mut builder);
        let mut elf = Vec::new();
        builder.write(&mut elf).unwrap();
        elf
    }

    fn section_names(elf: &[u8]) -> Vec<String> {
        let builder = Builder::read(elf).unwrap();
        let names =
            builder.sections.iter().map(|section| String::from_utf8_lossy(&section.name).into_owned());
        names.filter(|name| name != ".shstrtab").collect()
    }

    #[test]
    fn debug_sections_go_and_the_rest_stays() {
        let stripped =
            strip(&object_with(&["sockops", ".debug_info", ".BTF", ".debug_str", ".BTF.ext"])).unwrap();
        assert_eq!(section_names(&stripped), ["sockops", ".BTF", ".BTF.ext"]);
    }

    #[test]
    fn stripping_twice_is_stripping_once() {
        let once = strip(&object_with(&[".debug_info", ".BTF"])).unwrap();
        assert_eq!(strip(&once).unwrap(), once);
    }

    #[test]
    fn an_object_without_btf_is_refused() {
        let error = strip(&object_with(&["sockops"])).unwrap_err();
        assert!(error.to_string().contains(".BTF"), "{error}");
    }

    #[test]
    fn what_is_no_object_is_refused() {
        assert!(strip(b"not an object").is_err());
    }
}
