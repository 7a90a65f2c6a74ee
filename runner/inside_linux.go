package runner

func (u *run) rootPlan() (rootPlan, error) {
	t := newTrust(u.pr.CACertPEM(), u.outside.Roots)
	if u.image == nil {
		return curatedRoot(t, u.ident.owner)
	}
	p, err := imageRoot(u.image, t, u.ident.owner, u.t.Workdir)
	p.Detached = u.ident.slots > 0
	return p, err
}

// environment is the whole environment of the task: nothing of ours leaks in.
func (u *run) environment() []string {
	home := "/root"
	if u.ident.uid != 0 {
		home = "/workspace"
	}
	env := []string{"PATH=" + defaultPath, "HOME=" + home, "LANG=C.UTF-8", "TERM=" + u.termName()}
	if u.image != nil {
		env = append(env, u.image.Config.Env...)
	}
	env = append(append(env, "WARDER_RUN_ID="+u.t.Run.ID), trustEnv()...)
	env = append(env, gitOverHTTPS(u.outside.GitHosts)...)
	if u.sess != nil { // nil when the run failed before
		for k, v := range u.sess.StandIns() {
			env = append(env, k+"="+v)
		}
	}
	return mergeEnv(append(env, u.t.Env...))
}
